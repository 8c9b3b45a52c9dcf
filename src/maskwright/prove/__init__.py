"""Proofs: a killed run continues, and a run can be reproduced, with the same bits."""

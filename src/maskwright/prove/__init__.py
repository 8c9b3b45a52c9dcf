"""Proofs that a killed run continues, and that a run can be reproduced, with the same bits."""

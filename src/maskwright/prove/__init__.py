"""Proofs: a run survives injected faults, and can be reproduced with the same bits."""

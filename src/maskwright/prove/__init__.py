"""Proofs: a run survives faults that are made on purpose, and comes out again with the same bits."""

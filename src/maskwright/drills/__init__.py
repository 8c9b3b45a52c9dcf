"""Faults made on purpose, and the proof that a run survives them."""

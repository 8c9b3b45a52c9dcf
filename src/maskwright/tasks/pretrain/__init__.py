"""Pretraining: which model, which data, what is said before the first step."""

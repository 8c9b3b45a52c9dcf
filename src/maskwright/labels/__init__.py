"""Labelled examples: from a user's files to splits, label ids and encoded arrays. No torch and no jax."""

"""Hugging Face folders: their configuration, parameter names and weights."""

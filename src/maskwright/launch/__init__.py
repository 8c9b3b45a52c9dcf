"""Starts the command that a person would type on the machines that are to run it, and watches it. No torch, no jax."""

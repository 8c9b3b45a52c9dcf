"""Starts a user's command on other machines and watches it. Imports neither torch nor jax."""

"""The networks in JAX."""

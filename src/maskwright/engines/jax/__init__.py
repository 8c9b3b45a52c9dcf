"""The engine on JAX: TPU, and also CPU and GPU."""

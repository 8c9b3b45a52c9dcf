"""The engine on JAX: for TPUs, and on a CPU for tests."""

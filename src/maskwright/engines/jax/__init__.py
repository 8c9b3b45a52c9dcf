"""The engine on JAX, for TPUs. On a CPU it is there for tests."""

"""The loop and what it writes: checkpoints, metrics, status."""

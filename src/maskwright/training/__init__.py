"""The training loop and its files: checkpoints, metrics, status."""

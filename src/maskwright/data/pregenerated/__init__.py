"""Training examples whose masks are in files: the format of pytorch-transformers' `pregenerate_training_data.py`."""

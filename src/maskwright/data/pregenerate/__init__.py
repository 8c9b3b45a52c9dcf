"""Writes epochs with static masks: the format of pytorch-transformers' `pregenerate_training_data.py`."""

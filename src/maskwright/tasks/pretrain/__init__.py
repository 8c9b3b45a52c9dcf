"""Pretraining: its model, its data, and the lines before the first step."""

"""Stores of token ids that other tools wrote. One page a format."""

"""Text to a token store, in parts."""

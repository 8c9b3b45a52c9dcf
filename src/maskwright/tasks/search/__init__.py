"""Training an encoder to search, and scoring its rankings."""

"""An encoder that learns to search, and is judged by its rankings."""

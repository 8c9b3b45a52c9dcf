"""What a model is used for: predictions, embeddings, filled masks."""

"""Uses of a trained model: predictions, embeddings, filled masks."""

"""Raw text to documents, and documents to token ids."""

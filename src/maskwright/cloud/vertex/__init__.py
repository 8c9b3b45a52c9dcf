"""Custom jobs of Vertex AI."""

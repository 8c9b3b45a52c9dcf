"""RoBERTa: its shape, its forward pass, its Hugging Face names."""

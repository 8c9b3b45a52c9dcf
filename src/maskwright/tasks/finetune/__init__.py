"""Fine-tuning on labels."""

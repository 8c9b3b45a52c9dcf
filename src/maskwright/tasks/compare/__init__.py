"""Several models fine-tuned alike on the same labels, and the verdict."""

"""Several models fine-tuned in the same way on the same labels, and the verdict."""

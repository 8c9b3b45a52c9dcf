"""The proof that a killed run continues with the same bits."""

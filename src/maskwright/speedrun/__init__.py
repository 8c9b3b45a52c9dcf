"""The encoder speedrun: fixed text, tokenizer and target, any recipe, and one clock."""

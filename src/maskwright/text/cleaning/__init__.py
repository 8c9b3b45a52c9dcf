"""Which documents are worth training on: quality, language, near duplicates, contamination, personal data."""

"""Cleaning: quality rules, language, near duplicates, contamination, personal data."""

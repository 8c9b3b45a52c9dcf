"""Stores of token ids in other tools' formats, one module a format."""

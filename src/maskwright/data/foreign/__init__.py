"""Stores of token ids in other tools' formats, a module for each."""

"""One module per command that trains, measures, exports or shows a model."""

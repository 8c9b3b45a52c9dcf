"""A training environment on Google Cloud: its parts, its cost, its creation and deletion."""

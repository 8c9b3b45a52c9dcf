"""The older Cloud Build set-up: its values.env and its build table."""

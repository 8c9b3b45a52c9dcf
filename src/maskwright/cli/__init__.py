"""The commands, grouped by the user's task. Only this package imports typer."""

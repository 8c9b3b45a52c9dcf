"""The commands by what a person does with them. typer is imported here and nowhere else."""

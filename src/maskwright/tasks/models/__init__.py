"""Models from a run, a folder, a bucket or the Hugging Face Hub."""

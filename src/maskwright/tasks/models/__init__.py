"""Models from wherever they are: a run, a folder, a bucket, the Hugging Face Hub."""

"""Jobs for schedulers of their own: SLURM and Kubernetes."""

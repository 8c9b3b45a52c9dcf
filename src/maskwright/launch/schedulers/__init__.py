"""Jobs for schedulers of their own: SLURM, Kubernetes, SkyPilot."""

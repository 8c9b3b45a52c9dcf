"""Objects for a Kubernetes cluster: the same command in each pod, and what follows when one ends."""

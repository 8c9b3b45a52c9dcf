"""Objects for a Kubernetes cluster: the same command in each pod, and the rules for a pod's end."""

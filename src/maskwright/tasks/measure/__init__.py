"""The quality of a model on held-out text, minimal pairs, pseudo-likelihood and labels, and its pages."""

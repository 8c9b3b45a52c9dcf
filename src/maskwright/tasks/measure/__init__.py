"""How good a model is: held-out text, minimal pairs, pseudo-likelihood, labels; and the pages that say so."""

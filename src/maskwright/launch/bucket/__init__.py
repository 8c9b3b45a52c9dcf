"""One job on hosts, which fetch it from a bucket."""

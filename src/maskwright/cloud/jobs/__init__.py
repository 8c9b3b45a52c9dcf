"""Jobs on an environment: what hosts fetch, who watches the hosts, what follows from it."""

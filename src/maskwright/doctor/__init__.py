"""`maskwright doctor`: what this machine has and lacks for the work of maskwright, in under ten seconds."""

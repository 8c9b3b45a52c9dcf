"""`maskwright doctor`: checks this machine for maskwright, in under ten seconds."""

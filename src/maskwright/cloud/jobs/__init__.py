"""Jobs on an environment: submit, follow, and watch their hosts."""

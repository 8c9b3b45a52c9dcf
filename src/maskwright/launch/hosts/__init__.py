"""What supervises a process on a host, wherever the host is."""

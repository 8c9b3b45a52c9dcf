"""What commands do with what trains: a package for each thing that a person does."""

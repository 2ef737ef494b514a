"""A host: the process that runs nodes, and what it performs for their machines."""

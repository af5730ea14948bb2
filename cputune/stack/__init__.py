"""Which versions exist, fit each other, accept, refuse and ignore what; as data with sources."""

"""How a plan gets into a process: variables to set, variables to remove, and flags."""

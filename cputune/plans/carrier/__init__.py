"""How a plan gets into a process: variables, what is cleared, and flags."""

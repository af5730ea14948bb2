"""Other machines: which are meant, how they are reached, and a live line to each."""

"""Other machines: how they are named, reached and asked."""

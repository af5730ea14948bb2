"""Other hosts: their names, how they are reached, and how they are asked."""

"""What the doctor looks for, a file for each theme; ``registry`` says in which order."""

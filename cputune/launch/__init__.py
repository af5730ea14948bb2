"""What a launch is: read from words, shell or YAML, judged, changed and written in one model."""

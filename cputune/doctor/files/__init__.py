"""What can be wrong with a file: accelerate YAML, training commands, Kubernetes jobs."""

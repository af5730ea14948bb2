"""Judging what people launch with: accelerate YAML, training commands, Kubernetes jobs."""

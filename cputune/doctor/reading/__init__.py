"""Understanding what people launch with: shell scripts, the launches in them, YAML with lines."""

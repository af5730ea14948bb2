import sys

print("the last words", file=sys.stderr)
raise ValueError("a shape does not fit")

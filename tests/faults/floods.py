"""Hundreds of megabytes on stderr, then a failure whose message must still be readable."""

import sys

line = b"x" * 4095 + b"\n"
for _ in range(50_000):
    sys.stderr.buffer.write(line)
sys.stderr.buffer.flush()
raise RuntimeError("after the flood")

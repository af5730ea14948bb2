"""Scripts that the doctor runs in child processes and on other hosts.

Each needs the standard library and perhaps torch, and prints a line of JSON after each step, so
that a crash does not lose the earlier lines.
"""

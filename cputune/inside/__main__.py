"""``python -m cputune.inside SCRIPT ARGS...``: a rank that is measured."""

from __future__ import annotations

import sys

from cputune.inside.hooks import run_script

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m cputune.inside SCRIPT ARGS...")
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory, which `python SCRIPT` would not search
    sys.exit(run_script(sys.argv[1:]))

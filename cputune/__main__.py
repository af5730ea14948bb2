"""``python -m cputune``."""

from cputune.cli import main

if __name__ == "__main__":
    main()

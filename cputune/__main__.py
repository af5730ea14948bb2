"""``python -m cputune``."""

from cputune.start import main

if __name__ == "__main__":
    main()

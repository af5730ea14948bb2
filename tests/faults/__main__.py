"""``make faults``: a table of faults, printed; ends with 1 where something was wrong.

python -m faults --light 20 --torch 6 --times 3 --workers 4
"""

from __future__ import annotations

import sys

from faults.table import main

if __name__ == "__main__":
    sys.exit(main())

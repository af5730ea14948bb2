"""``make mutants``: a table of module × faults × caught; ends with 1 where too few are.

python -m mutants                     # every fault, for a night
python -m mutants --most 4            # four of each module
python -m mutants layout space        # modules whose path contains one of these words
"""

from __future__ import annotations

import sys

from mutants.table import main

if __name__ == "__main__":
    sys.exit(main())

"""A script with a plan set in it: ``python …/cputune/inside/applying PLAN SCRIPT ARGUMENTS...``.

PLAN is the JSON of a ``Force``; ``{}`` sets nothing, ``"guard": true`` compares the ranks while
they train. Any interpreter that trains can run it. An emitted launch has the parts in one file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[3]))

from cputune.inside.applying.ending import Ending, run_together
from cputune.inside.applying.force import Force
from cputune.inside.applying.guard import Guard
from cputune.inside.applying.parts import made
from cputune.inside.applying.run_script import main, refuse, say

if __name__ == "__main__":
    del sys.path[1]
    if len(sys.argv) < 3:
        sys.exit("usage: apply_plan.py PLAN SCRIPT ARGUMENTS...")
    plan = json.loads(sys.argv.pop(1))
    first = [Ending(), Guard()] if plan.pop("guard", False) else [Ending()]
    main([*first, *made(Force(**plan), refuse, say)], run_together)

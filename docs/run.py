"""``docs/run/``: pictures of a real run, which README and the landing page show.

``docs/run/cputune.json`` is what `make tune` wrote on the machine that README names. ``make doc``
draws the end of that tune as a terminal shows it, and the pictures of its page. A new run takes the
place of the old one as one file: nothing else has to be written.
"""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

from rich.console import Console

from cputune.records.result import Result
from cputune.report.answer import end_blocks
from cputune.report.figures import FiguresOf
from cputune.report.figures.canvas import alone, svg
from cputune.report.show import ResultToShow
from cputune.report.writing import print_blocks

RESULT = Path(__file__).parent / "run" / "cputune.json"
COLUMNS = 80


def terminal() -> str:
    """What `cputune tune` printed at its end."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    print_blocks(end_blocks(ResultToShow(result=Result.load(RESULT))), console)
    console.print()  # Rich cuts the foot of the last line off
    picture = console.export_svg(title="cputune tune", unique_id="run-tune")
    lines = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def figure(name: str) -> str:
    """A picture of the run, on a ground of its own, so that it is read on dark pages too."""
    return alone(svg(getattr(FiguresOf(Result.load(RESULT)), name)(), name))


RUN = {
    "run/tune.svg": terminal,
    **{f"run/{name}.svg": partial(figure, name) for name in ("waterfall", "step", "comparison")},
}

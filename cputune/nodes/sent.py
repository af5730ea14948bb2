"""What is sent to another host, and the command there that runs it."""

from __future__ import annotations

import base64
import re
import sys
import zlib
from functools import cache
from pathlib import Path

SENT = ("channel", "wire", "answers", "children", "agent")
"""In this order each file finds what it uses of the others."""

OLDEST_PYTHON = (3, 7)

TOO_OLD = "cputune needs Python 3.7 here, and this is"
"""How the far side complains of its Python."""

_RUN = (
    "import sys;v=sys.version_info;sys.path[:]=[p for p in sys.path if p];"
    f'v<{OLDEST_PYTHON}and sys.exit("{TOO_OLD} %d.%d"%v[:2]);'
    "import base64,zlib;"
    'exec(zlib.decompress(base64.b64decode(open(0,"rb",0,closefd=False).readline())))'
)
"""Reads one line, byte by byte: what follows it is the agent's. No file of the folder in which a
login begins is taken for a module. There is no sign in it that a shell takes for its own between
single quotes (csh: ``!``)."""

_CHOOSE = 'for p in "$@";do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0";done;exit 127'


@cache
def sent_source() -> str:
    """The files of the agent as one, without their imports of each other."""
    folder = Path(__file__).parent
    texts = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in SENT]
    joined = "\n".join(re.sub(r"(?m)^from (__future__|cputune)\b.*\n", "", text) for text in texts)
    return f"from __future__ import annotations\n{joined}"


@cache
def sent_line() -> bytes:
    """The same as one line, which the command there reads first."""
    return base64.b64encode(zlib.compress(sent_source().encode(), 9)) + b"\n"


def far_command(pythons: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command that waits for the agent on its standard input.

    The first of ``pythons`` that is there runs it: without any this very Python's path, which is
    the one that trains where hosts are alike, else ``python3``.
    """
    return ("sh", "-c", _CHOOSE, _RUN, *(pythons or (sys.executable, "python3")))

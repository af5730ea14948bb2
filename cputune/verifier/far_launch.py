"""A command on another host, as a process here: it ends when this one does, and likewise."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cputune.errors import CputuneError
from cputune.nodes.line import Line
from cputune.nodes.named import Node
from cputune.nodes.reach import find_reach

LOG = "launch.log"
LOOK_SECONDS = 3600.0
"""Between two looks whether it still runs; its end wakes us."""


def main(words: Sequence[str]) -> None:
    """SSH HOST VARIABLES COMMAND...: run it there with those variables of ours, in our folder.

    Its exit status is ours, and the end of what it wrote goes to stderr. Where this process is
    killed, or the network is cut, the agent over there ends it.
    """
    ssh, host, names, *argv = words
    told = [f"{name}={os.environ[name]}" for name in names.split(",") if name in os.environ]
    try:
        with Line.open(find_reach("ssh", ssh=ssh), Node(name=host)) as line:
            process = line.spawn(["env", *told, *argv], cwd=os.getcwd(), log=LOG)
            status = None
            while status is None:
                status = process.wait(LOOK_SECONDS)
            sys.stderr.write(line.tail(LOG))
    except CputuneError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint or 'cputune doctor --hosts'}\n")
        sys.exit(3)
    sys.exit(status if status >= 0 else 128 - status)

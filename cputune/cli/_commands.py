"""Commands as ``tune`` prints them, ready to be pasted: the first of a study, and the next one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cputune.cli._output import console, print_json
from cputune.documents import plain
from cputune.hidden import hide_arguments
from cputune.visible import visible
from cputune.workload import Workload

if TYPE_CHECKING:
    from cputune.tuner.space import SearchSpace


def print_space(space: SearchSpace, *, as_json: bool) -> None:
    """The plans that would be tried, what was left out and why, and the first command."""
    from cputune.report.tuning import space_lines

    words = _first_command(space)
    if as_json:
        print_json(
            {
                "schema": "cputune.space/1",
                "plans": [plan.to_json() for plan in space.plans()],
                "knobs": {knob.name: list(knob.values) for knob in space.knobs},
                "left_out": plain(space.left_out),
                "first_command": words,
            }
        )
        return
    out = console()
    for line in space_lines(space):
        out.print(visible(line))
    out.print(f"first: {space.baseline.describe()}")
    out.print(f"  {words}", soft_wrap=True)  # what is wrapped cannot be pasted


def _first_command(space: SearchSpace) -> str:
    """The baseline's command as the first trial runs it, ready to be pasted into a shell."""
    from cputune.carrier.command import carried, trial_command

    if space.workload.launch:
        return _for_shell(space.workload, space.workload.launch)
    versions = {p.name: p.version for p in space.facts.packages if p.version is not None}
    way = carried(space.workload, space.baseline, versions)
    python = "python3" if space.facts.recorded else sys.executable
    words = trial_command(space.workload, way)
    return f"{shlex.quote(python)} {_for_shell(space.workload, words)}"


def _for_shell(workload: Workload, words: Sequence[str]) -> str:
    """Words of a command for bash: secrets as the variables that hold them."""
    found = []
    for word in words:
        secret = workload.secret_of(word)
        found.append(
            shlex.quote(word)
            if secret is None
            else (shlex.quote(secret[0]) if secret[0] else "") + f'"${secret[1]}"'
        )
    return " ".join(found)


def again(job: Workload, script: Sequence[str], *, resumed: bool) -> str:
    """The command that was given, with --resume, without --force, its secrets as variables."""
    own = sys.argv[1:]
    if "--" in own:
        own = own[: own.index("--")]
    else:
        for word in script:
            own.remove(word)
    own = [word for word in own if word != "--force"]
    if not resumed:
        own.insert(own.index("tune") + 1 if "tune" in own else 0, "--resume")
    command = shlex.join(["cputune", *own])
    return f"{command} -- {_for_shell(job, hide_arguments(script)[0])}" if script else command

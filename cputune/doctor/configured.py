"""The default configuration of accelerate, judged if this user has one."""

from __future__ import annotations

import shlex

from cputune.doctor.finding import Finding
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts


def configured_findings(facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """What is wrong with it; empty without one.

    Its paths are those of accelerate/commands/config/config_args.py.
    """
    if facts.package("accelerate") is None:
        return ()
    variables = host.environment()
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
    home = variables.get("HF_HOME") or f"{cache}/huggingface"
    for name in ("default_config.yaml", "default_config.json"):
        path = f"{home}/accelerate/{name}"
        try:
            text = host.read_text(path)
        except (OSError, ValueError):
            continue
        from cputune.doctor.checkfile import check_file
        from cputune.doctor.files.accelerate import unreadable

        try:
            return check_file(text, path, facts, host)
        except UsageError as error:
            moved = f"mv {shlex.quote(path)} {shlex.quote(path + '.old')}"
            return (unreadable.finding(str(error), command=moved),)
    return ()

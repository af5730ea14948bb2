"""Several hosts: each is asked once, then what differs between them."""

from __future__ import annotations

from collections.abc import Iterable

from cputune.doctor.hosts.look import look_at_hosts
from cputune.doctor.hosts.seen import HostsDiagnosis, SeenHost
from cputune.remote.ask import ANSWER_SECONDS
from cputune.remote.named import parse_distinct_hosts
from cputune.remote.reach import find_reach

__all__ = ["HostsDiagnosis", "SeenHost", "diagnose_hosts", "look_at_hosts"]


def diagnose_hosts(
    hosts: Iterable[str],
    *,
    ssh: str | None = None,
    seconds: float = ANSWER_SECONDS,
    python: str | None = None,
    launch: str | None = None,
    deep: bool = False,
) -> HostsDiagnosis:
    """What ``cputune doctor --hosts`` finds: on each host, and between them.

    Args:
        hosts: their names, each once; ``node1:2`` has two slots.
        ssh: another ssh with its options, as one text.
        seconds: the most that one host may take.
        python: the interpreter that trains, where it is not ours; the same path everywhere.
        launch: a script, or the folder of a launch, that must be the same everywhere.
        deep: also what starts processes that communicate.

    Raises UsageError where the names make no sense, CannotError where no way leads to other hosts.
    """
    nodes = parse_distinct_hosts(",".join(hosts))
    reach = find_reach(ssh=ssh)
    return look_at_hosts(nodes, reach, seconds=seconds, python=python, launch=launch, deep=deep)

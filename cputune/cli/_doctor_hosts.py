"""``cputune doctor --hosts``: several machines, and what differs between them."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from cputune.cli._hosts import Hosts
from cputune.cli._output import console, json_text, tell, verbosity

if TYPE_CHECKING:
    from rich.console import Console

    from cputune.doctor.hosts import HostsDiagnosis, SeenHost


def diagnose_hosts(
    hosts: Hosts, *, python: str | None, launch: str | None, deep: bool
) -> HostsDiagnosis:
    """Look at all of them; with -v each is told of as it answers. Raises UsageError."""
    from cputune.doctor.hosts import look_at_hosts

    return look_at_hosts(
        hosts.nodes,
        hosts.reach,
        seconds=hosts.seconds,
        python=python,
        launch=launch,
        deep=deep,
        on_seen=_say if verbosity() > 0 else lambda host: None,
    )


def _say(host: SeenHost) -> None:
    tell(f"{host.name} has answered")


def hosts_text(diagnosis: HostsDiagnosis, form: str) -> str:
    """The document that was asked for: ``json``, ``markdown`` or ``text``.

    It names hosts, since that is what it is for; of users and their homes nothing is told.
    """
    from cputune.host import LiveHost
    from cputune.probing.scrub import Scrubber
    from cputune.report.hosts import document, markdown

    if form == "text":
        buffer = io.StringIO()
        print_hosts(diagnosis, console(buffer))
        return buffer.getvalue()
    variables = LiveHost().environment()
    scrub = Scrubber(home=variables.get("HOME"), user=variables.get("USER"))
    if form == "json":
        return json_text(scrub.document(document(diagnosis)), encoding=sys.stdout.encoding)
    return scrub.text(markdown(diagnosis))


def print_hosts(diagnosis: HostsDiagnosis, to: Console) -> None:
    """On the terminal; with -v every finding tells its story."""
    from cputune.report.hosts import print_text

    print_text(diagnosis, to, stories=verbosity() > 0)

"""Whether hosts are there at all, what time they have, and whether the launch lies on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts.seen import SeenHost, between, names_of, told

CLOCK_SECONDS = 1.0
"""NTP keeps hosts within milliseconds; from one second on make, caches and logs go wrong."""


@between(
    "hosts-unreachable",
    Severity.ERROR,
    title="A host cannot be reached",
    remedy="Mend the way to it, or leave it out of the list.",
    source="https://man.openbsd.org/ssh",
)
def unreachable(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: mpirun or the launcher hangs, or ends with the error of its ssh. Cause: as told.

    Launchers go to other hosts as the doctor does, without anybody to type a password: a key that
    is refused here is refused there.
    """
    found: dict[tuple[str, str | None], list[SeenHost]] = {}
    for host in hosts:
        if host.reason is not None:
            generic = host.cure and host.cure.replace(host.name, "HOST")
            found.setdefault((host.reason, generic), []).append(host)
    for (reason, cure), those in found.items():
        names = names_of([host.name for host in those])
        remedy = those[0].cure if len(those) == 1 else cure
        yield unreachable.finding(f"{names}: {reason}", remedy=remedy and _sentence(remedy))


def _sentence(text: str) -> str:
    """A hint as a remedy; a command keeps its small letter."""
    return text if text.endswith((".", "?")) else f"{text}."


@between(
    "hosts-clock",
    Severity.WARNING,
    title="The clocks of the hosts differ",
    remedy="Let all hosts follow one time server (chrony, systemd-timesyncd).",
    source="https://chrony-project.org/documentation.html",
)
def clock(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: files "from the future", caches of data sets that are made anew, logs out of order.

    Cause: a clock that nobody sets. Kerberos and munge (which Slurm trusts) refuse tickets that are
    minutes off, so a job does not start there at all.
    """
    known = [
        (host.clock_offset_seconds, host.clock_uncertainty_seconds or 0.0, host)
        for host in hosts
        if host.clock_offset_seconds is not None
    ]
    if not known:
        return
    middle = sorted(offset for offset, _, _ in known)[(len(known) - 1) // 2]
    # Of two nobody can say which is right: our own clock is the third.
    truth = middle if len(known) > 2 else 0.0
    off: dict[str, list[str]] = {}
    for offset, uncertainty, host in known:
        if abs(offset - truth) - uncertainty > CLOCK_SECONDS:
            ahead = "ahead" if offset > truth else "behind"
            off.setdefault(f"{_span(abs(offset - truth))} {ahead}", []).append(host.name)
    if off and len(known) > 1 and not _all_alike(known):
        yield clock.finding(told(off))


def _all_alike(known: Sequence[tuple[float, float, SeenHost]]) -> bool:
    """Whether it is our own clock alone that is off."""
    offsets = [offset for offset, _, _ in known]
    doubt = 2 * max(uncertainty for _, uncertainty, _ in known)
    return max(offsets) - min(offsets) - doubt <= CLOCK_SECONDS


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@between(
    "hosts-launch-files",
    Severity.ERROR,
    title="The launch is not the same on every host",
    remedy="Copy it to the same path on every host, or put it on a file system that they share: "
    "rsync -a DIR/ HOST:DIR/",
    source="https://www.open-mpi.org/faq/?category=running#do-i-need-a-common-filesystem",
)
def launch_files(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: "No such file or directory" on one host, or one rank trains something else.

    Cause: a launcher starts the same path on every host and copies nothing. An older copy of the
    script is worse than none: its ranks meet the others and compute with other numbers.
    """
    seen = [host for host in hosts if host.launch]
    for path in sorted({path for host in seen for path in host.launch}):
        lacking = [host.name for host in seen if host.launch.get(path) is None]
        if lacking:
            yield launch_files.finding(f"{path} is not on {names_of(lacking)}")
            continue
        kinds: dict[str | None, list[str]] = {}
        for host in seen:
            kinds.setdefault(host.launch[path], []).append(host.name)
        if len(kinds) > 1:
            apart = " / ".join(names_of(names) for names in kinds.values())
            yield launch_files.finding(f"{path} differs: {apart}")


CHECKS = (unreachable, launch_files, clock)

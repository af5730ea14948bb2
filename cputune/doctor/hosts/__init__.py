"""The doctor on several hosts: each is examined once, then the answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cputune.doctor import diagnose
from cputune.doctor.configured import configured_findings
from cputune.doctor.files.context import Context
from cputune.doctor.files.judge import judge_launches
from cputune.doctor.finding import Check, Finding, Severity, by_severity, findings_of
from cputune.doctor.hosts import differences, network
from cputune.doctor.hosts.differences import HostsDiagnosis, SeenHost, names_of
from cputune.host.remote.ask import ANSWER_SECONDS, AT_ONCE, Answer
from cputune.host.remote.named import Node, parse_distinct_hosts
from cputune.host.remote.probed import Probed, probe_each
from cputune.host.remote.reach import Reach, find_reach
from cputune.launch.launch import Launch
from cputune.launch.target import Target

__all__ = ["HostsDiagnosis", "SeenHost", "diagnose_hosts", "look_at_hosts"]

# Every check of several hosts. The checks of `network` need all hosts at the same time.
CHECKS: tuple[Check, ...] = (*differences.CHECKS, *network.CHECKS)
_TYPED = "the launch"


def look_at_hosts(
    nodes: Sequence[Node],
    reach: Reach,
    *,
    seconds: float = ANSWER_SECONDS,
    python: str | None = None,
    on_seen: Callable[[SeenHost], None] = lambda host: None,
    launch: Launch | None = None,
) -> HostsDiagnosis:
    """Examine each host, then compare the hosts and try the network between them.

    Args:
        nodes: the hosts, each once; ranks meet on the first.
        reach: how they are reached.
        seconds: time limit for one host; a slower one is a finding.
        python: path of the interpreter that trains, on all hosts; None: the same as here.
        on_seen: called with each host when it has answered, from several threads.
        launch: is judged for each host too.
    """
    answers = probe_each(
        nodes,
        reach,
        seconds,
        python=python,
        names=[node.name for node in nodes] if len(nodes) <= AT_ONCE else (),
        on_probed=lambda probed: on_seen(_seen(probed)),
    )
    hosts = tuple(_seen(answer, launch) for answer in answers)
    findings = list(findings_of(CHECKS, hosts))
    answered = [host for host in answers if isinstance(host, Probed)]
    if len(nodes) > AT_ONCE:
        evidence = f"{len(nodes)} hosts: names and ports are tried between {AT_ONCE} at most"
        remedy = "Name only the hosts of one job."
        findings.append(
            network.ports_not_tried.finding(evidence, severity=Severity.ADVICE, remedy=remedy)
        )
    elif len(answered) > 1:
        findings += network.network_between(answered, reach, seconds=seconds)
    findings += findings_of_hosts(hosts)
    return HostsDiagnosis(hosts=hosts, findings=by_severity(findings))


def findings_of_hosts(hosts: Sequence[SeenHost]) -> tuple[Finding, ...]:
    """The findings of each host; a finding that several hosts have appears once."""
    having: dict[str, list[tuple[str, Finding]]] = {}
    for host in hosts:
        for code, finding in {finding.code: finding for finding in host.findings}.items():
            having.setdefault(code, []).append((host.name, finding))
    findings = []
    for (first, finding), *others in having.values():
        also = ""
        if others:
            also = f" (also on {names_of([name for name, _ in others])})"
        findings.append(replace(finding, evidence=f"{first}: {finding.evidence}{also}"))
    return tuple(findings)


def _seen(answer: Probed | Answer, launch: Launch | None = None) -> SeenHost:
    """What a host reported, and the findings for it alone and for a launch on it."""
    if isinstance(answer, Answer):
        error = answer.unreachable
        assert error is not None
        return SeenHost(
            node=answer.node,
            seconds=answer.seconds,
            reason=error.reason,
            remedy=error.hint,
            started=error.started,
        )
    findings = list(diagnose(answer.facts).findings)
    findings += configured_findings(answer.facts, answer.host)
    if launch is not None:
        findings += _of_launch(launch, answer)
    return SeenHost(
        node=answer.node,
        seconds=answer.seconds,
        facts=answer.facts,
        python=answer.python,
        machine=answer.machine,
        findings=tuple(findings),
    )


def _of_launch(launch: Launch, answer: Probed) -> Iterator[Finding]:
    """What is wrong with a launch on this host."""
    context = Context(
        name=_TYPED,
        facts=answer.facts,
        host=answer.host,
        target=Target(kind="hosts", source="hosts"),
    )
    return judge_launches([launch], context)


def diagnose_hosts(
    hosts: Iterable[str],
    *,
    ssh: str | None = None,
    seconds: float = ANSWER_SECONDS,
    python: str | None = None,
) -> HostsDiagnosis:
    """What ``cputune doctor --hosts`` finds: on each host, and between them.

    Args:
        hosts: their names, each once; ``node1:2`` has two slots.
        ssh: another ssh with its options, as one text.
        seconds: time limit for one host.
        python: path of the interpreter that trains, on all hosts; None: the same as here.

    Raises UsageError for invalid host names, CannotError if other hosts cannot be reached.
    """
    nodes = parse_distinct_hosts(",".join(hosts))
    reach = find_reach(ssh=ssh)
    return look_at_hosts(nodes, reach, seconds=seconds, python=python)

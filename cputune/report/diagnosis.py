"""Shows a diagnosis of one or several machines: as blocks for a terminal, as a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cputune.doctor import Diagnosis, Finding, Severity
from cputune.doctor.finding import Check, FoundOn, docs_of
from cputune.host.facts import HostFacts
from cputune.host.remote.named import folded
from cputune.plans.delivery.network_interface import Chosen, choose_interface
from cputune.plans.untried import SLOWER, times
from cputune.records.shared_texts import Verdict
from cputune.report.machine_text import gib, host_document, machine_lines, nodes_in_brief
from cputune.report.next_step import Examined, next_step
from cputune.report.writing import Block, FindingRows, Heading, Labelled, Lines, Rows, source_urls
from cputune.text import cpulist
from cputune.text.plain import count, visible

if TYPE_CHECKING:
    from cputune.doctor.hosts import HostsDiagnosis, SeenHost


def document(diagnosis: Diagnosis | HostsDiagnosis) -> dict[str, Any]:
    """The ``cputune.doctor/1`` document, or ``cputune.hosts/1``, whose ``host`` is null if it
    was not reached.
    """
    if not isinstance(diagnosis, Diagnosis):
        return {
            "schema": "cputune.hosts/1",
            "hosts": [_host(host) for host in diagnosis.hosts],
            "interface": asdict(interface_of(diagnosis)),
            "findings": [finding.to_json() for finding in diagnosis.findings],
            "summary": diagnosis.summary,
        }
    return {
        "schema": "cputune.doctor/1",
        "host": host_document(diagnosis.facts),
        "findings": [finding.to_json() for finding in diagnosis.findings],
        "summary": diagnosis.summary,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The findings as they are shown: consequences folded into their cause, equal ones joined.

    ``by_tune`` is advice that ``cputune tune`` tries, each with the name of its knob.
    """

    wrong: tuple[Finding, ...]
    advice: tuple[Finding, ...]
    by_tune: tuple[tuple[Finding, str], ...] = ()

    @classmethod
    def of(cls, findings: tuple[Finding, ...], *, brief: bool) -> Shown:
        """Group findings. If ``brief``, what tune tries becomes one line."""
        from cputune.doctor.checks import CHECKS

        tuned = {}
        for check in CHECKS:
            if check.tuned and brief:
                tuned[check.code] = check.tuned
        wrong, advice, by_tune = list[Finding](), list[Finding](), list[tuple[Finding, str]]()
        for finding in _folded(findings):
            if finding.severity is not Severity.ADVICE:
                wrong.append(finding)
            elif finding.code in tuned:
                by_tune.append((finding, tuned[finding.code]))
            else:
                advice.append(finding)
        return cls(
            wrong=tuple(_joined(wrong)), advice=tuple(_joined(advice)), by_tune=tuple(by_tune)
        )

    @property
    def counts(self) -> str:
        """``1 error, 2 pieces of advice``."""
        severities = [finding.severity for finding in self.wrong + self.advice]
        counted = []
        for severity in Severity:
            number = severities.count(severity)
            if number:
                counted.append(f"{number} {_counted(severity, number)}")
        return ", ".join(counted)


def blocks(
    diagnosis: Diagnosis | HostsDiagnosis,
    *,
    examined: Examined | None = None,
    unfold: bool = False,
) -> Iterator[Block]:
    """The verdict, the faults, then the advice. Hosts come first, the machine last.

    If something other than a machine is ``examined``, there are only findings. With ``unfold`` each
    finding has its symptom, cause and source, and each unknown fact its reason.
    """
    from cputune.doctor.registry import all_checks

    examined = examined or Examined()
    machine = examined.is_machine
    brief = machine and not unfold
    yield verdict_of(diagnosis, examined, brief=brief)
    if not isinstance(diagnosis, Diagnosis):
        yield host_rows(diagnosis)
        chosen = interface_of(diagnosis)
        line = f"interface between the hosts: {chosen.name or 'none'} ({chosen.why})"
        yield Lines((("", line),))
    stories = {}
    if unfold:
        stories = {check.code: check.story for check in all_checks()}
    shown = Shown.of(diagnosis.findings, brief=brief)
    if shown.wrong:
        yield Heading("What is wrong")
        yield FindingRows(findings=shown.wrong, stories=stories)
    if shown.advice:
        yield Heading("Worth doing")
        yield FindingRows(findings=shown.advice, stories=stories, brief=brief)
    if shown.by_tune:
        tried = dict.fromkeys(_tried(finding, knob) for finding, knob in shown.by_tune)
        yield Lines((("", f"cputune tune tries these: {', '.join(tried)}"),))
    if isinstance(diagnosis, Diagnosis) and machine:
        yield Heading("The machine")
        yield _machine(diagnosis.facts, unfold=unfold, recipe=diagnosis.recipe)
    parts = []
    if isinstance(diagnosis, Diagnosis) and machine:
        parts.append(f"{count(passed(diagnosis), 'check')} passed")
    if diagnosis.findings and not unfold:
        code = diagnosis.findings[0].code
        parts.append(f"more: cputune doctor -v, or --explain {code}")
    if parts:
        yield Lines((("", "; ".join(parts)),))


def passed(diagnosis: FoundOn) -> int:
    """Number of checks of a machine that found nothing."""
    from cputune.doctor.checks import CHECKS

    codes = {finding.code for finding in diagnosis.findings + diagnosis.hidden}
    return sum(check.code not in codes for check in CHECKS)


# What is shown of a machine without ``-v``, one line each.
IN_BRIEF = ("CPU", "precision", "cores", "NUMA nodes", "memory", "limits", "packages")


def _tried(finding: Finding, word: str) -> str:
    if finding.worth is None:
        return word
    return f"{word} ({times(*finding.worth)})"


def _machine(facts: HostFacts, *, unfold: bool, recipe: str) -> Labelled:
    rows = machine_lines(facts)
    if not unfold:
        described = dict(rows) | nodes_in_brief(facts)
        rows = []
        for label, text in described.items():
            if label in IN_BRIEF:
                rows.append((label, text))
    if recipe:
        rows.append(("recipe", recipe))
    rows += _unknown_rows(facts, unfold=unfold)
    return Labelled(rows=tuple(rows), cut=not unfold)


def _folded(findings: tuple[Finding, ...]) -> list[Finding]:
    """Fold findings that follow from another one into the evidence of that one."""
    from cputune.doctor.checks import CHECKS

    codes = {finding.code for finding in findings}
    checks = CHECKS
    if not codes <= {check.code for check in CHECKS}:
        from cputune.doctor.registry import all_checks  # which takes long to import

        checks = all_checks()
    causes_of = {check.code: check.under for check in checks}
    follows: list[tuple[Finding, str]] = []
    kept: list[Finding] = []
    for finding in findings:
        causes = [code for code in causes_of.get(finding.code, ()) if code in codes]
        if causes:
            follows.append((finding, causes[0]))
        else:
            kept.append(finding)
    for finding, cause in follows:
        kept_codes = [other.code for other in kept]
        if cause not in kept_codes:  # the cause was itself folded into another one
            kept.append(finding)
            continue
        place = kept_codes.index(cause)
        also = f"; with it {finding.code}: {finding.evidence}"
        kept[place] = replace(kept[place], evidence=kept[place].evidence + also)
    return kept


def _joined(findings: list[Finding]) -> Iterator[Finding]:
    """Join findings that differ only in their evidence, one line of evidence for each."""
    alike: dict[Finding, list[str]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, evidence=""), []).append(visible(finding.evidence))
    for finding, evidence in alike.items():
        yield replace(finding, evidence="\n".join(evidence))


def _unknown_rows(facts: HostFacts, *, unfold: bool) -> list[tuple[str, str]]:
    """The unknown facts: a row with the reason for each, or one row for all of them."""
    if unfold or len(facts.unknown) < 2:
        return [("unknown", f"{item.fact}: {item.reason}") for item in facts.unknown]
    return [("unknown", f"{len(facts.unknown)} facts; with -v each of them and why")]


def _means(findings: tuple[Finding, ...]) -> str:
    """What the findings mean for training. Empty without findings."""
    codes_of: dict[Severity, set[str]] = {severity: set() for severity in Severity}
    for finding in findings:
        codes_of[finding.severity].add(finding.code)
    warned = codes_of[Severity.WARNING]
    if codes_of[Severity.ERROR]:
        return "Training fails, or is wrong, until something is fixed"
    if any(finding.code == "torch-missing" for finding in findings):
        return "Nothing trains here, because torch is not installed"
    if warned:
        if warned <= SLOWER:
            return "Training runs, but slower than it could"
        if warned & SLOWER:
            return "Training may be slower than it could be, and there are other problems"
        return "Nothing was found that stops training, but there are problems"
    if any(finding.code in ("rehearsal-late", "rehearsal-stopped") for finding in findings):
        return "Nothing wrong was found, but the launch was not tried up to its first step"
    if findings:
        return "Nothing is wrong"
    return ""


def verdict_of(
    diagnosis: Diagnosis | HostsDiagnosis, examined: Examined | None = None, *, brief: bool = True
) -> Verdict:
    """The verdict: what the findings mean, what to do first, and what was read."""
    examined = examined or Examined()
    if isinstance(diagnosis, Diagnosis):
        looked_at = [diagnosis.facts]
        source = "this machine"
        if diagnosis.facts.recorded:
            source = "the recording"
        source += ", nothing was timed"
    else:
        looked_at = []
        for host in diagnosis.hosts:
            if host.facts is not None:
                looked_at.append(host.facts)
        source = f"{len(looked_at)} of {len(diagnosis.hosts)} hosts"
    unknown = sum(len(facts.unknown) for facts in looked_at)
    gaps = ""
    if unknown == 1:
        gaps = "; 1 fact is not known"
    elif unknown:
        gaps = f"; {unknown} facts are not known"
    means = _means(diagnosis.findings)
    counted = verdict(diagnosis, brief=brief)
    sentence = f"{means}: {counted}"
    if not means:
        sentence = counted[0].upper() + counted[1:]
    return Verdict(
        means=f"{sentence}.",
        do=next_step(diagnosis, examined),
        sure=f"read from {source}{gaps}",
    )


def verdict(diagnosis: FoundOn, *, brief: bool = False) -> str:
    """One line: how many findings of each severity are shown, and how many are left out."""
    shown = Shown.of(diagnosis.findings, brief=brief)
    hidden = Shown.of(diagnosis.hidden, brief=False).counts
    parts = []
    if shown.counts:
        parts.append(shown.counts)
    if shown.by_tune:
        tried = count(len(shown.by_tune), "change")
        if shown.advice:
            tried = f"{len(shown.by_tune)} more"
        parts.append(f"cputune tune tries {tried}")
    if hidden:
        parts = (parts or ["nothing found"]) + [f"left out by --only or --ignore: {hidden}"]
    return "; ".join(parts) or "nothing is wrong, and there is nothing to advise"


def _counted(severity: Severity, count: int) -> str:
    plural = ""
    if count > 1:
        plural = "s"
    if severity is Severity.ADVICE:
        return f"piece{plural} of advice"
    return f"{severity.value}{plural}"


def explain(check: Check) -> str:
    """The text of ``--explain``: symptom, cause, remedy and sources."""
    sources = "\n".join(f"Source: {url}" for url in source_urls(check.source))
    head = f"{check.code} ({check.severity.value}): {check.title}"
    places = f"{sources}\nDocs: {docs_of(check.code)}"
    return "\n\n".join((head, check.story, f"Remedy: {check.remedy}", places)) + "\n"


def check_list(checks: tuple[Check, ...]) -> str:
    """One line for each check: code, usual severity, title."""
    width = max(len(check.code) for check in checks)
    lines = [f"{c.code:{width}}  {c.severity.value:7}  {c.title}" for c in checks]
    lines += ["", "To explain one: cputune doctor --explain CODE", ""]
    return "\n".join(lines)


def interface_of(diagnosis: HostsDiagnosis) -> Chosen:
    """The network interface of a job over the hosts that were reached."""
    reached = []
    for host in diagnosis.hosts:
        if host.facts is not None:
            reached.append((host.name, host.facts.network))
    return choose_interface(reached)


def _host(host: SeenHost) -> dict[str, object]:
    facts = None
    if host.facts is not None:
        facts = host_document(host.facts)
    return {
        "name": host.name,
        "slots": host.node.slots,
        "reached": host.facts is not None,
        "reason": host.reason,
        "cure": host.remedy,
        "seconds": round(host.seconds, 3),
        "python_path": host.python,
        "host": facts,
        "findings": [finding.to_json() for finding in host.findings],
    }


def host_rows(diagnosis: HostsDiagnosis) -> Rows:
    """A row for each host. Hosts in a row that are alike have one (``node[01-12]``)."""
    headings = ("host", "CPU", "cores", "allowed", "memory", "Python", "torch")
    names_by_row: dict[tuple[str, ...], list[str]] = {}
    for host in diagnosis.hosts:
        facts = host.facts
        if facts is None:
            blank = [""] * (len(headings) - 2)
            state = "not reached"
            if host.started:
                state = "not examined"
            row = (f"{state}: {host.reason}", *blank)
            names_by_row.setdefault(row, []).append(host.name)
            continue
        topology, torch = facts.topology, facts.package("torch")
        cores, memory, torch_version = "?", "?", "none"
        if topology.cores_known:
            cores = str(topology.physical_cores)
        if facts.memory.total_bytes is not None:
            memory = gib(facts.memory.total_bytes)
        if torch is not None:
            torch_version = torch.version or "?"
        cpu = facts.cpu.codename or facts.cpu.model_name
        allowed = cpulist.render(topology.allowed) or "?"
        row = (cpu or "?", cores, allowed, memory, facts.python or "?", torch_version)
        names_by_row.setdefault(row, []).append(host.name)
    rows = []
    for row, names in names_by_row.items():
        for name in folded(names):
            rows.append((name, *row))
    return Rows(headings=headings, rows=tuple(rows), right=frozenset({"memory"}))

"""``cputune doctor --check-file FILE``: judge a launch file before it runs.

A shell or batch script, an accelerate configuration, a Job, MPIJob, PyTorchJob or
TrainJob, compose, a Dockerfile, requirements.txt, environment.yml or a hostfile. It is judged by
the installed packages, or by a named stack (``named_stack.stack_facts``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from cputune.doctor.files import (
    accelerate,
    arguments,
    around,
    at_once,
    configuration,
    dockerfile,
    ended,
    hostfiles,
    judge,
    kubeflow,
    named_cpus,
    needs,
    package_lists,
    pins,
    slurm,
    workloads,
    yaml_spans,
)
from cputune.doctor.files.context import Context
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.files.proven import Proof, refused, replaced, without_ccl, worse
from cputune.doctor.finding import Check, Finding, Severity, by_severity, checks_of, fault
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.launch.edit import Edit, apply, original_lines
from cputune.launch.grammar import Tree
from cputune.launch.launch import Launch
from cputune.launch.places import Places
from cputune.launch.shell import read_shell
from cputune.launch.target import target_of

# YAML takes longer to read; ``documents`` limits its number of values.
LETTERS_AT_MOST = 1 << 20

_HINT = (
    "it judges a script with a training command (mpirun, torchrun, accelerate launch, python), an "
    "accelerate configuration, a Job, MPIJob, PyTorchJob or TrainJob, compose, a "
    "Dockerfile, requirements.txt, environment.yml, a hostfile"
)


def check_file(
    text: str,
    name: str,
    facts: HostFacts,
    host: Host | None = None,
) -> tuple[Finding, ...]:
    """The faults of one file, the worst first; the evidence names file and line.

    ``name`` decides the kind together with the content. ``host`` has the training script and
    libraries; None: nothing is known of them. Raises UsageError if the text is malformed or of an
    unknown kind.
    """
    if len(text) > LETTERS_AT_MOST:
        raise UsageError(f"{name} has {len(text)} characters", hint=f"{LETTERS_AT_MOST} are read")
    if "\0" in text:
        raise UsageError(f"{name} is not a text file", hint=_HINT)
    if name.endswith(".py"):
        raise UsageError(
            f"{name} is a script of Python, and no launch of one",
            hint=f"cputune doctor -- python {name} --its-arguments judges how it is started",
        )
    context = Context(name=name, facts=facts, host=host or Host())
    if _is_dockerfile(text, name):
        places = Places(text, sets="ENV")
        return by_severity(dockerfile.judge_dockerfile(replace(context, places=places)))
    if package_lists.is_requirements(name):
        context = replace(context, places=Places(text))
        return by_severity(package_lists.judge_requirements(context))
    if hostfiles.is_hostfile(name):
        return by_severity(hostfiles.judge_hosts(text, context))
    places = Places(text, yaml=is_yaml(text, name))
    return by_severity(_judge(text, replace(context, places=places)))


def _is_dockerfile(text: str, name: str) -> bool:
    """Whether a file is a Dockerfile, by its name or its first instruction."""
    named = re.search(r"(docker|container)file(\.[\w.-]+)?$", name.rpartition("/")[2].lower())
    return (
        named is not None or re.match(r"(#[^\n]*\n|\s)*(ARG [^\n]*\n\s*)*FROM ", text) is not None
    )


# A fix may reveal the next fault: after a launcher is replaced, its options are read.
ROUNDS = 24
# These change how the rest is read, so they are fixed first.
_FIRST = ("file-line-ends", "file-launcher-missing", "file-instances", "file-one-process")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFile:
    """A file as its findings fix it.

    ``unfixed``: what is still found, and what the fixes left out. ``fixed``: the findings that were
    fixed.
    """

    text: str
    unfixed: tuple[Finding, ...]
    fixed: tuple[Finding, ...] = ()


def fix_text(
    text: str,
    name: str,
    facts: HostFacts,
    host: Host | None = None,
    proof: Proof | None = None,
    *,
    compared: bool = True,
) -> tuple[str, tuple[Finding, ...]]:
    """The file as its findings fix it, and what is left. Raises UsageError as ``check_file``.

    Without ``compared`` the launches are not: the caller sets ranks, threads and libraries itself.
    """
    if not compared:
        done = _fixed(text, name, facts, host, proof, {}, compared=False)
    else:
        done = fix_file(text, name, facts, host, proof)
    return done.text, done.unfixed


def fix_file(
    text: str,
    name: str,
    facts: HostFacts,
    host: Host | None = None,
    proof: Proof | None = None,
) -> FixedFile:
    """Fix the file, one kind of fault after the other. Raises UsageError as ``check_file``.

    A fix is dropped, with the reason, if the file would no longer parse, or if a launch would start
    fewer ranks, lose its threads or what it preloads, or if that is not known. ``proof`` is one
    more question to each fix.
    """
    withheld = dict[str, str]()
    done = _fixed(text, name, facts, host, proof, withheld)
    reason = without_ccl(text, done.text)
    if reason is not None:
        withheld.update(dict.fromkeys(_SETS_UP_CCL, reason))
        done = _fixed(text, name, facts, host, proof, withheld)
    kept = {one.code for one in done.unfixed}
    unproven = dict[str, Finding]()
    for code, reason in withheld.items():
        if code in kept:
            unproven[reason] = fix_unproven.finding(f"{name}: {reason}")
    return replace(done, unfixed=done.unfixed + tuple(unproven.values()))


# Findings whose fix removes the setup of oneCCL.
_SETS_UP_CCL = ("file-sourced-missing", "file-variable-unread", "stack-variable-ignored")


def _fixed(
    text: str,
    name: str,
    facts: HostFacts,
    host: Host | None,
    proof: Proof | None,
    withheld: dict[str, str],
    *,
    compared: bool = True,
) -> FixedFile:
    """The file after all fixes but those whose codes are ``withheld``, which is added to."""
    fixed = list[Finding]()
    original = text
    findings = check_file(text, name, facts, host)
    launches = asked = launches_in(text, name)
    stuck = set(withheld)
    # One kind of fault at a time, and the file is read again: a fix moves the places of the others,
    # and may remove them.
    for _ in range(ROUNDS):
        fixable = [one for one in findings if one.edits and one.code not in stuck]
        if not fixable:
            break
        code = min(
            fixable, key=lambda one: _FIRST.index(one.code) if one.code in _FIRST else 9
        ).code
        same = [one for one in fixable if one.code == code]
        edits = chain.from_iterable(one.edits for one in same)
        after = _without_empty_blocks(apply(text, _once(edits)))
        judged = _judged_again(text, after, name, facts, host)
        if judged is None:
            stuck.add(code)
            continue
        findings_after, launches_after = judged
        reason = None
        if _stay(same, findings_after):
            reason = f"what would be changed does not remove its finding, {code}"
        elif compared:
            reason = worse(launches, launches_after, text, after)
            reason = reason or replaced(asked, launches_after)
        reason = reason or _refused(text, after, name, host, proof)
        if reason is not None:
            stuck.add(code)
            withheld[code] = reason
            continue
        lines = original_lines(original, text)
        for one in same:
            dropped = tuple(_with_line(option, name, lines) for option in one.dropped)
            fixed.append(replace(one, dropped=dropped))
        text, findings, launches = after, findings_after, launches_after
    lines = original_lines(original, text)
    unfixed = [replace(one, evidence=_with_line(one.evidence, name, lines)) for one in findings]
    for option in dict.fromkeys(chain.from_iterable(one.dropped for one in fixed)):
        unfixed.append(option_left.finding(option))
    return FixedFile(text=text, unfixed=tuple(unfixed), fixed=tuple(fixed))


def _refused(
    text: str, after: str, name: str, host: Host | None, proof: Proof | None
) -> str | None:
    """What refuses the fixed file, and not the file before: bash, or the given proof."""
    reason = None
    if host is not None and _is_shell(text, name):
        reason = refused(host, text, after)
    if reason is None and proof is not None:
        reason = proof(text, after)
    return reason


def _with_line(evidence: str, name: str, lines: Sequence[int]) -> str:
    """The evidence with the line of the file as it was, and not as the fixes leave it."""
    match = re.match(rf"{re.escape(name)}:(\d+): ", evidence)
    if match is None or not 1 <= int(match[1]) <= len(lines):
        return evidence
    return f"{name}:{lines[int(match[1]) - 1]}: {evidence[match.end() :]}"


def _judged_again(
    text: str, after: str, name: str, facts: HostFacts, host: Host | None
) -> tuple[tuple[Finding, ...], tuple[Launch, ...]] | None:
    """The findings and launches of a text after a fix; None if it cannot be read any more."""
    if after == text or not _parses_as(text, after, name):
        return None
    try:
        return check_file(after, name, facts, host), launches_in(after, name)
    except UsageError:
        return None


def _stay(fixed: Iterable[Finding], findings_after: Iterable[Finding]) -> bool:
    """Whether all these findings are still there, on whichever lines."""
    after = Counter(_without_line(finding) for finding in findings_after)
    return not Counter(_without_line(finding) for finding in fixed) - after


def _without_line(finding: Finding) -> tuple[str, str]:
    return finding.code, re.sub(r":\d+: ", ": ", finding.evidence)


def offered(
    findings: tuple[Finding, ...],
    text: str,
    name: str,
    facts: HostFacts,
    host: Host | None,
    proof: Proof | None = None,
) -> tuple[Finding, ...]:
    """The findings, without the edits that ``fix_file`` would leave out."""
    if not any(finding.edits for finding in findings):
        return findings
    done = fix_file(text, name, facts, host, proof)
    codes = {finding.code for finding in done.fixed}
    kept = list[Finding]()
    for finding in findings:
        if finding.edits and finding.code not in codes:
            finding = replace(finding, edits=())
        kept.append(finding)
    return tuple(kept)


def _is_shell(text: str, name: str) -> bool:
    is_text = package_lists.is_requirements(name) or hostfiles.is_hostfile(name)
    return not (is_text or is_yaml(text, name) or _is_dockerfile(text, name))


def launches_in(text: str, name: str) -> tuple[Launch, ...]:
    """The launches of a file: of a script, of the command of an image, of a job's containers."""
    if package_lists.is_requirements(name) or hostfiles.is_hostfile(name):
        return ()
    if _is_dockerfile(text, name):
        return dockerfile.launches_of(text)
    if is_yaml(text, name):
        launches = list[Launch]()
        for document in yaml_spans.read_documents(text, name):
            if document.get("kind") in kubeflow.RANKS:
                launches += kubeflow.job_launches(document)
            elif workloads.is_workload(document):
                launches += workloads.launches_of(document)
        return tuple(launches)
    return read_shell(text, name, target_of(text).variables).launches


def scripts_not_read(text: str, name: str, facts: HostFacts, host: Host) -> tuple[str, ...]:
    """What its launches train and cannot be read here: files, modules, words of variables."""
    context = Context(name=name, facts=facts, host=host)
    absent = dict[str, None]()
    for launch in launches_in(text, name):
        if "$" in launch.script:
            absent[f"{launch.script} (only running shows it)"] = None
        elif launch.module:
            absent[f"the module {launch.script}"] = None
        elif launch.script.endswith(".py") and context.text_of(launch.script) is None:
            absent[f"{launch.script} (not here)"] = None
    return tuple(absent)


def _once(edits: Iterable[Edit]) -> Iterator[Edit]:
    """The edits, without a line that sets the same for a later launch.

    At the beginning of a line the first one usually reaches every launch behind it; if it does not
    (it is in a function), the launch is found again and gets its own.
    """
    set_before = set[str]()
    for edit in sorted(edits):
        is_line = edit.start == edit.end and edit.text.endswith("\n")
        if is_line and edit.text.strip() in set_before:
            continue
        if is_line and not edit.text[0].isspace():
            set_before.add(edit.text.strip())
        yield edit


_EMPTY_BLOCK = re.compile(
    r"(?m)^([ \t]*)((?:[^\n#]*[; \t])?(?:then|do|else)[ \t]*\n(?:[ \t]*(?:#[^\n]*)?\n)*)"
    r"(?=[ \t]*(?:fi|done|elif|else)\b)"
)


def _without_empty_blocks(text: str) -> str:
    """Put ``:`` into a branch or loop whose last command was removed."""
    return _EMPTY_BLOCK.sub(lambda match: f"{match[0]}{match[1]}    :\n", text)


def _parses_as(before: str, after: str, name: str) -> bool:
    """Whether the new text parses, or the old one did not."""
    if _is_dockerfile(before, name):
        return True
    if is_yaml(before, name):
        try:
            yaml_spans.read_documents(after, name)
        except UsageError:
            return False
        return True
    return not Tree(after).root.has_error or Tree(before).root.has_error


@fault("file-fix-unproven", Severity.ADVICE)
def fix_unproven() -> None:
    """A fix is not printed, because its result is worse or not known

    Symptom: `--print-fix` leaves a finding for you, although it has a fix for it.

    Cause: the fixed file is read and judged again before it is shown. A launch of it would start
    fewer ranks, lose its threads or what it preloads, or still need what the fix takes away; the
    evidence says which.

    Remedy: Make the change that the evidence names, and run `--print-fix` again.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


@fault("file-option-left", Severity.ADVICE)
def option_left() -> None:
    """The fix leaves out an option

    Symptom: `--print-fix` writes another launcher without an option of the old one.

    Cause: the new launcher has no such option, and training on CPUs does not need it; the evidence
    says why.

    Remedy: Read the reason, and add what you need.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


def is_yaml(text: str, name: str) -> bool:
    """Whether a file is YAML (or JSON), by its name or by its first key."""
    lines = (line for line in text.splitlines() if line.strip() and line[:1] not in ("#", "-"))
    suffix = name.lower().endswith((".yaml", ".yml", ".json"))
    return suffix or re.match(r"\w+:(\s|$)", next(lines, "")) is not None


def _judge(text: str, context: Context) -> Iterator[Finding]:
    if not is_yaml(text, context.name):
        target = target_of(text)
        file = read_shell(text, context.name, target.variables, context.text_of)
        if not file.launches:
            message = f"no training command was found in {context.name}"
            for part in file.unread:
                message += f"; line {part.line}: {part.text}"
            raise UsageError(message, hint=_HINT)
        context = context.on(target)
        yield from ended.judge_sourced(context)
        yield from around.judge_breaks(file, context)
        yield from slurm.judge_slurm(text, file, context)
        yield from judge.judge_launches(file.launches, context)
        yield from at_once.judge_at_once(text, file.launches, context)
        for part in file.unread:
            yield part_unread.finding(context.at(part.line, part.text))
        yield from _configurations(file.launches, context)
        return
    judged = []
    for document in yaml_spans.read_documents(text, context.name):
        judged.append(judge_document(document, context))
    if not any(judged):
        raise UsageError(f"{context.name} is YAML of an unknown kind", hint=_HINT)
    for findings in filter(None, judged):
        yield from findings


def _configurations(launches: Iterable[Launch], context: Context) -> Iterator[Finding]:
    """The faults of the configurations of accelerate that launches name, each once."""
    seen = set[str]()
    for launch in launches:
        judged = JudgedLaunch.of(launch, context)
        path, document = configuration.configuration_of(judged)
        if not path or path in seen:
            continue
        seen.add(path)
        if document is None:
            text = f"{configuration.NAMES} {path}: it cannot be read here"
            yield part_unread.finding(judged.at(text))
        elif accelerate.is_configuration(document):
            beside = replace(context, name=path, places=None)
            for finding in accelerate.judge_accelerate(document, beside):
                yield replace(finding, edits=())


@fault("file-unread", Severity.ADVICE)
def part_unread() -> None:
    """A part of this file was not read

    Symptom: the file has no finding, and its training still fails or is slow.

    Cause: it sources a file, starts another script or a container, or takes a setting from
    something that only running shows. What these say of ranks, threads and arguments is not judged.

    Remedy: Check what the evidence names, too: `cputune doctor --check-file FILE`.

    Source: https://www.gnu.org/software/bash/manual/html_node/Bourne-Shell-Builtins.html
    """


def judge_document(document: yaml_spans.Document, context: Context) -> Iterator[Finding] | None:
    """Every fault of one document; None if its kind is not judged."""
    for is_it, judge_it in DOCUMENTS:
        if is_it(document):
            return judge_it(document, context)
    return None


# The kinds of documents: what is one, and what judges it. The first that fits judges.
DOCUMENTS: tuple[
    tuple[
        Callable[[yaml_spans.Document], bool],
        Callable[[yaml_spans.Document, Context], Iterator[Finding]],
    ],
    ...,
] = (
    (package_lists.is_environment, package_lists.judge_environment),
    (workloads.is_workload, workloads.judge_workload),
    (kubeflow.is_job, kubeflow.judge_job),
    (accelerate.is_configuration, accelerate.judge_accelerate),
)


# Faults of files; they find nothing in the facts of a machine.
FILE_CHECKS: tuple[Check, ...] = (
    judge.CHECKS
    + around.CHECKS
    + at_once.CHECKS
    + named_cpus.CHECKS
    + slurm.CHECKS
    + arguments.CHECKS
    + needs.CHECKS
    + ended.CHECKS
    + accelerate.CHECKS
    + kubeflow.CHECKS
    + dockerfile.CHECKS
    + pins.CHECKS
    + hostfiles.CHECKS
    + workloads.CHECKS
    + checks_of(__name__)
)

"""What launches of older guides are today, each change with its reason and source.

Nothing is known here: which words are refused, and what is written instead, are the rows of
``stack.toml`` as the judges of ``--check-file`` read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cputune.doctor.checkfile import check_file, kind_of
from cputune.doctor.checks.surroundings import cache_not_read
from cputune.doctor.files.accelerate import use_cpu_missing
from cputune.doctor.files.beside import (
    instructions,
    looks_like_dockerfile,
    looks_like_hosts,
    words_of,
)
from cputune.doctor.files.command import (
    faulty_words,
    is_alone,
    parser_of,
    ranks_left_open,
    wrong_backend,
)
from cputune.doctor.files.context import Context
from cputune.doctor.files.kubernetes import KINDS, containers_of, job_elastic, launches_of
from cputune.doctor.files.shell import TrainingCommand, read_launches, value_of
from cputune.doctor.files.yaml_lines import Document, read_documents
from cputune.doctor.finding import Check, Finding
from cputune.errors import UsageError
from cputune.facts import HostFacts
from cputune.host import Host
from cputune.stack import ipex_use, load
from cputune.stack.uses import Fate, Word, ccl_refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """One change: ``now`` is "" where nothing takes its place; ``line`` counts from 1."""

    was: str
    now: str
    why: str
    source: str = ""
    line: int | None = None

    def describe(self) -> str:
        """``--no_cuda → --use_cpu: why (source)``."""
        source = f" ({self.source})" if self.source else ""
        return f"{self.was} → {self.now or 'nothing'}: {self.why}{source}"


ROUNDS = 3
"""``--xpu_backend ccl`` becomes ``--ddp_backend ccl``, and that ``--ddp_backend gloo``."""


def migrate_arguments(
    launch: TrainingCommand, context: Context
) -> tuple[tuple[str, ...], tuple[Migrated, ...]]:
    """The arguments of a training script as these versions take them, and what was changed.

    Flags that the script may parse by itself stay as they are.
    """
    words, found = launch.arguments, []
    for _ in range(ROUNDS):
        now = replace(launch, arguments=words)
        refused = [
            word
            for word, parser in faulty_words(now, context)
            if word.state is Fate.REFUSED and parser == "trainer"
        ]
        for word in refused:
            words, was, became = _exchanged(words, word)
            found.append(
                Migrated(was=was, now=became, why=_why(word), source=word.source, line=launch.line)
            )
    flag = next((f for f in BACKENDS if value_of(words, (f,)) is not None), None)
    if flag and is_alone(launch) and parser_of(flag, launch, context) == "trainer":
        word = Word(spelling=f"{flag} {value_of(words, (flag,))}", state=Fate.REFUSED, reader="")
        words, was, _ = _exchanged(words, word)
        why = "one rank speaks to nobody; transformers ends with a ValueError"
        found.append(Migrated(was=was, now="", why=why, source=wrong_backend.source))
    return words, tuple(found)


BACKENDS = ("--ddp_backend", "--xpu_backend")


def _why(word: Word) -> str:
    after = (word.instead or "").partition(", ")[2]
    return ", ".join(part for part in (f"refused by {word.reader}", word.why, after) if part)


def _exchanged(words: tuple[str, ...], word: Word) -> tuple[tuple[str, ...], str, str]:
    """The words with one spelling replaced; what stood there, and what stands there now."""
    flag, _, choice = word.spelling.partition(" ")
    instead = (word.instead or "nothing").partition(",")[0]
    kept: list[str] = []
    was = now = ""
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        if "--" + name[2:].replace("-", "_") != flag:
            kept.append(words[position])
            position += 1
            continue
        following = words[position + 1 : position + 2]
        apart = not equals and following and not following[0].startswith("-")
        value = following[0] if apart else value
        was = f"{name} {value}".rstrip()
        position += 2 if apart else 1
        if choice:
            new = instead.split() if instead != "nothing" else []
        else:
            new = [instead, *([value] if value else [])] if instead != "nothing" else []
        taken = {one.partition("=")[0] for one in (*words, *kept)}
        if new and new[0] != flag and new[0] in taken:
            new = []
        now = " ".join(new)
        kept += new
    return tuple(kept), was, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A file as today's versions take it; ``left`` is what the doctor still finds in it."""

    text: str
    changes: tuple[Migrated, ...]
    left: tuple[Finding, ...]


def migrate(text: str, name: str, facts: HostFacts, host: Host | None = None) -> Migration:
    """A launch file of an older guide, for the packages of these facts.

    Takes what ``check_file`` takes, and raises UsageError as it does. What else stands in the file
    stays as it is, comments too.
    """
    check_file(text, name, facts, host, here=False)
    context = replace(Context.of(name, facts, host or Host()), here=False)
    page = _Page(text)
    documents = _documents(text, name)
    for document in documents:
        if document.get("kind") is None:
            _accelerate(page, document, context)
        elif document.get("kind") == "PyTorchJob":
            _pytorchjob(page, document)
    for launch in _launches(text, name, documents):
        _, changes = migrate_arguments(launch, context)
        for change in changes:
            if not page.exchange(change):
                page.note(replace(change, now="", why=f"change it by hand: {change.why}"))
    _oneccl(page, context)
    if cache_not_read(replace(facts, environment={"TRANSFORMERS_CACHE": "/models"})):
        page.rename("TRANSFORMERS_CACHE", "HF_HUB_CACHE", cache_not_read)
    now = page.text()
    return Migration(
        text=now,
        changes=tuple(sorted(page.changes, key=lambda one: one.line or 0)),
        left=check_file(now, name, facts, host, here=False) if now.strip() else (),
    )


def _documents(text: str, name: str) -> tuple[Document, ...]:
    try:
        documents = read_documents(text, name)
    except UsageError:
        return ()
    return tuple(document for document in documents if kind_of(document))


def _launches(text: str, name: str, documents: tuple[Document, ...]) -> tuple[TrainingCommand, ...]:
    if documents:
        return tuple(
            launch
            for document in documents
            if document.get("kind") in KINDS
            for at, _ in containers_of(document)
            for launch in launches_of(document, at, name)
        )
    if looks_like_dockerfile(name, text):
        return tuple(
            replace(launch, line=line)
            for line, word, rest in instructions(text)
            if word in ("CMD", "ENTRYPOINT")
            for launch in read_launches(words_of(rest), name)
        )
    return () if looks_like_hosts(name, text) else read_launches(text, name)


_GONE = "\0"
_EMPTY = re.compile(r"[ \t\\,;&-]*(?:export|ENV)?[ \t\\,;&]*")
"""What is left of a line of which all else is gone."""


class _Page:
    """The lines of a file while they are changed; a line keeps its number until the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._added: dict[int, list[str]] = {}
        self.changes: list[Migrated] = []

    def text(self) -> str:
        """What has become of the file."""
        lines = []
        for number, line in enumerate(self._text.split("\n"), 1):
            if _GONE not in line or not _EMPTY.fullmatch(line.replace(_GONE, "")):
                lines.append(line.replace(_GONE, ""))
            elif lines and lines[-1].endswith("\\") and not line.rstrip().endswith("\\"):
                lines[-1] = lines[-1][:-1].rstrip()  # its continuation is gone
            lines += self._added.get(number, ())
        return "\n".join(lines)

    def note(self, change: Migrated) -> None:
        """Say something of the file, once."""
        if all((one.was, one.line) != (change.was, change.line) for one in self.changes):
            self.changes.append(change)

    def add(self, line: int, text: str, change: Migrated) -> None:
        """A line after another one."""
        self._added.setdefault(line, []).append(text)
        self.note(replace(change, line=line))

    def drop(self, first: int, last: int, change: Migrated) -> None:
        """Leave lines out, both ends among them."""
        lines = self._text.split("\n")
        lines[first - 1 : last] = [_GONE] * (last - first + 1)
        self._text = "\n".join(lines)
        self.note(replace(change, line=first))

    def exchange(self, change: Migrated) -> bool:
        """A flag, wherever it stands: in a line, or as items of a list. False where it does not."""
        flag, _, value = change.was.partition(" ")
        new, _, new_value = change.now.partition(" ")
        pattern = r"(?P<q>[\"']?)" + re.escape(flag).replace("_", "[-_]") + r"(?P<e>[\"']?)"
        if value:
            between = r"(?P<s>=|[ \t]*,?[ \t]*(?:\\?\n[ \t]*(?:-[ \t]+)?)?)"
            pattern += between + rf"(?P<v>[\"']?){re.escape(value)}(?P<w>[\"']?)"
        pattern += r"(?![\w.=-])"

        def written(found: re.Match[str]) -> str:
            self.note(replace(change, line=self._line(found)))
            if not new:
                return _gone(found)
            head = f"{found['q']}{new}{found['e']}"
            return head + (f"{found['s']}{found['v']}{new_value}{found['w']}" if value else "")

        return self.sub(pattern, written)

    def sub(self, pattern: str, written: Callable[[re.Match[str]], str]) -> bool:
        """Replace outside of comments; what goes takes the blanks behind it along."""

        def one(found: re.Match[str]) -> str:
            begin = self._text.rfind("\n", 0, found.start()) + 1
            if self._text[begin : found.start()].lstrip().startswith("#"):
                return found[0]
            new = written(found)
            return new if new.startswith(_GONE) else new + found["behind"]

        before = self._text
        self._text = re.sub(rf"(?<![\w-])(?:{pattern})(?P<behind>,?[ \t]*)", one, before)
        return self._text != before

    def _line(self, found: re.Match[str]) -> int:
        return self._text.count("\n", 0, found.start()) + 1

    def remove(self, pattern: str, why: str, source: str) -> None:
        """Leave out what matches, and say so."""

        def gone(found: re.Match[str]) -> str:
            was = " ".join(found[0].split()).strip(" ;&")
            self.note(Migrated(was=was, now="", why=why, source=source, line=self._line(found)))
            return _gone(found)

        self.sub(pattern, gone)

    def rename(self, old: str, new: str, check: Check) -> None:
        """A variable that has another name now."""
        change = Migrated(was=old, now=new, why=check.title, source=check.source)

        def named(found: re.Match[str]) -> str:
            self.note(replace(change, line=self._line(found)))
            return new

        self.sub(rf"{old}\b", named)


def _gone(found: re.Match[str]) -> str:
    """In the place of what is left out: as many lines."""
    return "\n".join([_GONE] * (found[0].count("\n") + 1))


_BINDINGS = "oneccl_bindings_for_pytorch|torch_ccl|oneccl_bind_pt|oneccl[-_]bind[-_]pt"
_OF_ONECCL = (
    # what guides set and source for oneCCL, in a shell, a list of variables and a Dockerfile
    rf"\w+=\$\(python[^\n]*(?:{_BINDINGS})[^\n]*\)[ \t]*(?:;|&&)?",
    r"(?:source|\.)[ \t]+[^\n]*?setvars\.sh[\"']?(?:[ \t]*(?:;|&&))?",
    r"export[ \t]+CCL_\w+=[^\s;&]+(?:[ \t]*(?:;|&&))?(?=[ \t]*(?:\n|$))",
    r"-x[ \t]+CCL_\w+(?:=\S+)?",
    r"-?-genv[ \t]+CCL_\w+(?:=|[ \t]+)\S+",
    r"-[ \t]+name:[ \t]*[\"']?CCL_\w+[\"']?[ \t]*\n[ \t]*value:[^\n]*",
    r"(?:ENV[ \t]+)?CCL_\w+=\S+",
    rf"[\"']?(?:{_BINDINGS})(?:[=<>~!]=[\w.+]+)?[\"']?(?=[ \t\n]|$)",
)


def _oneccl(page: _Page, context: Context) -> None:
    """oneCCL and IPEX go where nothing calls them any more."""
    refused = ccl_refusals(context.versions)
    for pattern in _OF_ONECCL if refused else ():
        page.remove(pattern, refused[0], "huggingface/accelerate#3883")
    use = ipex_use(context.versions)
    if not use.possible and use.state != "unknown":
        pattern = r"[\"']?intel[-_]extension[-_]for[-_]pytorch(?:[=<>~!]=[\w.+]+)?[\"']?"
        page.remove(pattern + r"(?=[ \t\n]|$)", use.reason, "huggingface/transformers#40784")


def _accelerate(page: _Page, document: Document, context: Context) -> None:
    """Keys that accelerate refuses or ignores go; use_cpu comes."""
    library, version = load().accelerate, context.accelerate
    reader = context.read_by("accelerate", version)
    keys = list(document.mapping())
    ends = [document.line(key) or 1 for key in keys[1:]]
    ends.append(len(page.text().rstrip().split("\n")) + 1)
    for key, end in zip(keys, ends, strict=True):
        if key not in library.keys_of(version):
            gone = Migrated(was=f"{key}:", now="", why=f"refused by {reader}", source=KEY_SOURCE)
            page.drop(document.line(key) or 1, end - 1, gone)
    ccl = document.line("mpirun_config", "mpirun_ccl")
    reads = library.does("reads-mpirun-ccl", version)
    if "mpirun_ccl" in document.mapping("mpirun_config") and ccl is not None and not reads:
        gone = Migrated(was="mpirun_ccl:", now="", why=f"not read by {reader}", source=KEY_SOURCE)
        page.drop(ccl, ccl, gone)
    if document.get("use_cpu") is not True:
        told = document.line("use_cpu")
        new = Migrated(
            was=f"use_cpu: {document.get('use_cpu')}" if told else "no use_cpu",
            now="use_cpu: true",
            why=use_cpu_missing.title,
            source=use_cpu_missing.source,
        )
        if told:
            page.drop(told, told, new)
        page.add(told or (document.line(keys[-1]) or 1), "use_cpu: true", new)


KEY_SOURCE = "huggingface/accelerate#3883"


def _pytorchjob(page: _Page, document: Document) -> None:
    """A number of ranks that is left to the host, and a job that may train on a part of itself."""
    spec = document.line("spec")
    told = document.get("spec", "nprocPerNode")
    if told in (None, "auto") and spec is not None:
        first = document.line("spec", *list(document.mapping("spec"))[:1]) or spec + 1
        indent = re.match(r"[ \t]*", page.text().split("\n")[first - 1])
        was = document.line("spec", "nprocPerNode") if told else None
        new = Migrated(
            was="nprocPerNode: auto",
            now='nprocPerNode: "1"',
            why=f"{ranks_left_open.title}; a rank for each socket to begin with",
            source=ranks_left_open.source,
        )
        if was:
            page.drop(was, was, new)
        page.add(was or spec, f'{indent[0] if indent else "  "}nprocPerNode: "1"', new)
    least = document.get("spec", "elasticPolicy", "minReplicas")
    workers = document.get("spec", "pytorchReplicaSpecs", "Worker", "replicas")
    at = document.line("spec", "elasticPolicy", "minReplicas")
    if isinstance(least, int) and isinstance(workers, int) and least < workers and at is not None:
        change = Migrated(
            was=f"minReplicas: {least}",
            now=f"minReplicas: {workers}",
            why=job_elastic.title,
            source=job_elastic.source,
            line=at,
        )

        def written(found: re.Match[str]) -> str:
            page.note(change)
            return change.now

        page.sub(rf"minReplicas:[ \t]*{least}\b", written)

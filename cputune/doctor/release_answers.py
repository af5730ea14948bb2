"""Which releases of a library have what an error misses: newer ones, older ones, or none.

An upgrade is proposed before a downgrade.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cputune.stack.interface import Presence
from cputune.stack.tables import parse
from cputune.text.failure_log import Failure

# The version of each package, as far as the log or the machine shows it.
Versions = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What explains an error: title, cause and fix, and a command or None.

    ``contradicts``: the installed release has what the error lacks, so another one ran.
    """

    title: str
    cause: str
    fix: str
    command: str | None = None
    source: str = "PyPI wheels of each minor release"
    contradicts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One name that a release has or lacks: ``TrainingArguments`` ``takes`` ``eval_strategy``.

    ``name`` is empty for a module. ``new`` is its replacement in later releases, ``old`` its
    earlier name.
    """

    package: str
    owner: str
    verb: str
    name: str = ""
    presence: Presence
    failure: Failure
    versions: Versions
    new: str = ""
    old: str = ""
    source: str = field(default="PyPI wheels of each minor release")

    @property
    def what(self) -> str:
        """``TrainingArguments takes eval_strategy``."""
        return f"{self.owner} {self.verb} {self.name}".rstrip()

    @property
    def no_longer(self) -> str:
        """``TrainingArguments no longer takes no_cuda``."""
        return f"{self.owner} no longer {self.verb} {self.name}".rstrip()


def between(question: Question) -> Answer | None:
    """Whether the release that raised the error is too old or too new, and what to do."""
    presence, package = question.presence, question.package
    releases = presence.range_text()
    if not releases:
        if question.verb != "takes":
            return _always(question)
        return None
    installed = parse(question.versions.get(package))
    version = installed
    if installed is not None and presence.at(installed):
        return _has_it(question, str(installed))
    since = f"{presence.first.major}.{presence.first.minor}"
    too_old = version is not None and version < presence.first
    too_new = version is not None and version > presence.last
    if version is None:
        too_old = presence.still
        too_new = not presence.still  # old code meets new packages more often than the reverse
    caller = _caller(question.failure, package)
    cause = f"in {package}, {question.what} {releases}"
    cause += f"; found: {package} {version}." if version is not None else "."
    if too_old:
        fix = f"install {package} {since} or later"
        if question.old and not caller:
            fix += f", or use {question.old}"
        title = f"{package} is too old: {question.what} {releases}"
        below = ""
        if version is not None and version.major == presence.first.major:
            below = f",<{version.major + 1}"  # the next major release would change more
        command = f"pip install -U '{package}>={since}{below}'"
        return Answer(title=title, cause=cause, fix=fix, command=command, source=question.source)
    if too_new:
        after = presence.after
        gone = ""
        if after:
            gone = f"{after.major}.{after.minor}"
        title = f"{package} {gone} and later: {question.no_longer}"
        return _after(question, caller, title, cause)
    title = f"Another {package} is needed: {question.what} {releases}"
    fix = f"install {package} {since} or later if yours is older; if yours is newer, "
    replaced = question.new and not question.new.startswith("nothing")
    fix += f"use {question.new}" if replaced else "remove it"
    return Answer(title=title, cause=cause, fix=fix, source=question.source)


def _has_it(question: Question, version: str) -> Answer:
    """The release that is known to be installed has it, so it is not the one that ran."""
    package = question.package
    return Answer(
        title=f"{package} {version} has it: another {package} ran, or its files are mixed",
        cause=f"in {package}, {question.what} {question.presence.range_text()}, and {version} was "
        "found. A notebook still has the older one loaded, another Python ran, an upgrade left "
        "files of two releases, or the import failed inside because another package is missing.",
        fix=f"start Python again, and see which one runs: python -c 'import {package}; "
        f"print({package}.__version__, {package}.__file__)'; then install it again",
        command=f"pip install --force-reinstall --no-deps {package}=={version}",
        source=question.source,
        contradicts=True,
    )


def _always(question: Question) -> Answer:
    """Every known release has it, so what ran is older, or not a release from PyPI."""
    package, oldest = question.package, question.presence.first
    if package == "torch":  # one release was read; another is gigabytes, and of another index
        return Answer(
            title="torch is older than the code that uses it, or another file is imported",
            cause=f"{question.what} in torch {oldest}, and not in the torch that ran.",
            fix="upgrade torch, or install the release of the calling library that fits this "
            "torch; if torch is new, a file torch.py of yours may hide it: python -c 'import "
            "torch; print(torch)'",
            source=question.source,
        )
    return Answer(
        title=f"{package} is older than {oldest}, another file is imported, or files are missing",
        cause=f"{question.what} in every release of {package} from {oldest} on.",
        fix=f"look at what is imported (python -c 'import {package}; print({package})'): rename "
        f"a file of yours of that name, or install {package} again",
        command=f"pip install -U --force-reinstall --no-deps {package}",
        source=question.source,
    )


def _after(question: Question, caller: str, title: str, cause: str) -> Answer:
    """What to do about something removed, which your script or a library uses."""
    if caller:
        fix = f"upgrade {caller}"
        if question.new and not question.new.startswith("nothing"):
            fix += f"; in your own code it is {question.new} then"
        return Answer(
            title=f"{caller} is too old for this {question.package}",
            cause=f"{cause} {caller} uses it.",
            fix=fix,
            command=f"pip install -U {caller}",
            source=question.source,
        )
    if question.new.startswith("nothing"):
        reason = question.new.removeprefix("nothing").lstrip(", :")
        fix = "remove it"
        if reason:
            fix = f"remove it: {reason}"
        return Answer(title=title, cause=cause, fix=fix, source=question.source)
    older = _older_release(question)
    if question.new and question.verb == "takes":
        return Answer(title=title, cause=cause, fix=f"use {question.new}", source=question.source)
    if question.new:
        fix = f"use {question.new}; {older}"
        return Answer(title=title, cause=cause, fix=fix, source=question.source)
    fix = f"take a newer release of the code that uses it; {older}"
    return Answer(title=title, cause=cause, fix=fix, source=question.source)


def _older_release(question: Question) -> str:
    """The last releases that have it, for code that cannot be changed."""
    package, after = question.package, question.presence.after
    if after is None:
        return "in your own code remove it: the release notes say what replaces it"
    below = f"pip install '{package}<{after.major}.{after.minor}'"
    if question.failure.frames:
        return f"code that was written for an older {package} needs that: {below}"
    return f"if a library uses it, upgrade that library, or {below}"


def _caller(failure: Failure, package: str) -> str:
    """The library whose code used what is missing; empty if it was your code."""
    outside = [
        frame
        for frame in failure.frames
        if frame.package not in ("python", package) and not frame.file.endswith("/deprecation.py")
    ]  # a decorator that renames arguments passes the call on
    if outside:
        return outside[-1].package
    return ""

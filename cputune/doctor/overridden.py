"""Methods of a library's class that your class overrides with the signature of another release."""

from __future__ import annotations

import re

from cputune.doctor.release_answers import Answer, Versions
from cputune.stack import interface
from cputune.stack.interface import Presence
from cputune.text.failure_log import Failure

# Classes that scripts derive from.
_OVERRIDDEN = ("Trainer", "TrainerCallback", "Seq2SeqTrainer", "SFTTrainer", "Accelerator")


def override_of(function: str, name: str, failure: Failure) -> Answer | None:
    """The answer to a method that gets an argument which its base class takes, or None."""
    for package, owner in _bases_with(function):
        called = f"{owner}.{function}"
        presence = interface.argument(package, called, name)
        if presence is not None and not (presence.always and presence.still):
            return _of_release(package, called, name, presence)
        if presence is not None or interface.argument(package, called, "**") is not None:
            return Answer(
                title=f"{called} is overridden without {name}, which {package} passes",
                cause=f"{owner} of {package} calls {function} with {name}. The class that was "
                "given overrides the method, or is a callback of another library.",
                fix=f"add {name} or **kwargs to its {function}; give {owner} classes of {package} "
                "alone",
            )
    return None


def _of_release(package: str, called: str, name: str, presence: Presence) -> Answer:
    owner, _, function = called.partition(".")
    releases = presence.range_text()
    after = presence.after
    if after is None:
        other = f"below {presence.first.major}.{presence.first.minor}"
    else:
        other = f"{after.major}.{after.minor} or later"
    return Answer(
        title=f"{function} of a class below {owner} lacks {name}, "
        f"which {package} {releases} passes",
        cause=f"{called} takes {name} {releases}; the class overrides it with the signature of "
        "another release.",
        fix=f"add {name}=None to its {function}; if a library defines the class, upgrade that "
        f"library, or install {package} {other}",
    )


def positional(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    """The answer to a method that gets more arguments than it takes, as its base class does."""
    function, taken, given = match["function"], int(match["taken"]), int(match["given"])
    if given <= taken:
        return None
    for package, owner in _bases_with(function):
        called = f"{owner}.{function}"
        releases = interface.releases(package)
        counts = [len(interface.arguments(package, called, each)) + 1 for each in releases]
        enough = []
        for n, count in enumerate(counts):
            if count >= given:
                enough.append(n)
        if not enough or enough[0] == 0:
            continue
        first = releases[enough[0]]
        new = interface.arguments(package, called, first)
        before = interface.arguments(package, called, releases[enough[0] - 1])
        names = ", ".join(sorted(new - before))
        return Answer(
            title=f"{function} of a class below {owner} has the signature of {package} before "
            f"{first.major}.{first.minor}",
            cause=f"{package} {first.major}.{first.minor} and later pass {names} to {called}; the "
            "class overrides it without.",
            fix=f"add {names} to its {function}, with None as default; if a library defines the "
            f"class, upgrade that library, or install {package} below "
            f"{first.major}.{first.minor}",
        )
    return None


def _bases_with(function: str) -> list[tuple[str, str]]:
    """The classes that scripts derive from and that have this method, with their package."""
    bases: list[tuple[str, str]] = []
    if function.startswith("__"):
        return bases
    for package in interface.PACKAGES:
        for owner in _OVERRIDDEN:
            if interface.callables(package, f"{owner}.{function}"):
                bases.append((package, owner))
    return bases

"""Errors of libraries whose releases were not read: calls, names, modules, shared libraries.

What can be named is the caller: the last frame of the traceback. Names that are known to have gone
are in ``[gone]`` of ``known_errors/imports.toml``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache

from cputune.doctor.release_answers import Answer, Versions
from cputune.text.documents import packaged_toml
from cputune.text.failure_log import Failure

_IMPORT_SYSTEM = "https://docs.python.org/3/library/sys_path_init.html"
VALUES = ("list", "tuple", "dict", "str", "int", "float", "bool", "set", "bytes")

# What lines that expect a tensor or a batch ask for.
_OF_TENSORS = (
    "attention_mask", "backward", "contiguous", "cpu", "cuda", "detach", "device", "dim", "dtype",
    "float", "input_ids", "item", "labels", "last_hidden_state", "logits", "long", "loss",
    "masked_fill", "ndim", "new_zeros", "numpy", "pooler_output", "requires_grad", "shape", "size",
    "squeeze", "to", "transpose", "unsqueeze", "view",
)  # fmt: skip


@cache
def table(name: str) -> Mapping[str, str]:
    """A table of ``known_errors/imports.toml``.

    ``classes``: the library of a class of whose name others have one too; ``distributions``: what
    pip calls a module; ``instead``: what replaces a removed name; ``gone``: the last releases with
    a name; ``libraries``: how to get a shared library.
    """
    rows: dict[str, str] = packaged_toml("cputune.doctor", "known_errors/imports.toml")[name]
    return rows


def caller_of(failure: Failure) -> str:
    """The package that makes the last call; empty if it is your code, or not shown."""
    for frame in failure.frames[-1:]:
        if frame.package != "python":
            return frame.package
    return ""


def distribution_of(module: str) -> str:
    """What pip calls a module, as far as it is known."""
    names = table("distributions")
    top = module.partition(".")[0]
    return names.get(module) or names.get(top) or top.replace("_", "-")


def gone_name(home: str, name: str) -> Answer | None:
    """The answer about a name that a release is known to have removed."""
    requirement = table("gone").get(f"{home}.{name}")
    if requirement is None:
        return None
    package = re.split(r"[<>=]", requirement)[0]
    if package == "python":
        return Answer(
            title=f"This Python no longer has {home}.{name}",
            cause="the code, or a library that it uses, was written for an older Python.",
            fix=f"upgrade the library that the traceback names, or use {requirement}",
            source="https://docs.python.org/3/whatsnew/",
        )
    return Answer(
        title=f"{package} is too new for the code: {home} no longer has {name}",
        cause=f"the name is in {requirement} alone.",
        fix="upgrade the library that uses it; until then install the older release",
        command=f"pip install '{requirement}'",
        source=f"https://pypi.org/project/{package}/",
    )


def gone_argument(owner: str, name: str) -> Answer | None:
    """The answer about an argument that a release of a library is known to have removed."""
    if owner:
        return gone_name(owner, name)
    for known in table("gone"):
        home, _, argument = known.rpartition(".")
        if argument == name and "." not in home and home[:1].isupper():
            return gone_name(home, name)
    return None


def other_name(home: str, name: str, failure: Failure) -> Answer:
    """The answer about a name that a library does not have, and perhaps had or will have."""
    package = home.partition(".")[0]
    gone = gone_name(home, name) or gone_name(package, name)
    if gone is not None:
        return gone
    if package in sys.stdlib_module_names:
        return Answer(
            title=f"This Python has no {name} in {home}",
            cause=f"{home} is part of Python: a release of Python has added or removed {name}, or "
            f"a file {package}.py of yours is imported instead.",
            fix="rename such a file; else upgrade the library that the traceback names, or use "
            "the Python that it was written for",
            source="https://docs.python.org/3/whatsnew/",
        )
    if not _is_installed(package, failure):
        return _of_project(home, name)
    pip = distribution_of(package)
    caller = caller_of(failure)
    both = pip
    of_caller = "the library that imports it"
    if caller and caller != package:
        both = f"{distribution_of(caller)} {pip}"
        of_caller = caller
    return Answer(
        title=f"{home} has no {name}: another release of {package} is installed than the "
        "code needs",
        cause="names change between releases, and pip keeps an installed one unless something "
        "forbids it.",
        fix=f"upgrade {package} and {of_caller} together; if {package} is the newest already, it "
        "has removed the name: install an older one",
        command=f"pip install -U {both}",
        source=_IMPORT_SYSTEM,
    )


def _is_installed(package: str, failure: Failure) -> bool:
    """Whether a package is known to be one of an index, and no folder of the project."""
    installed = any(frame.package == package for frame in failure.frames)
    return installed or package in table("distributions") or "-packages/" in failure.message


def _of_project(home: str, name: str) -> Answer:
    """The answer about a name of a module that may be a file of the project itself."""
    package = home.partition(".")[0]
    return Answer(
        title=f"{home} has no {name}: files of two states of one project, or another {package}",
        cause=f"{package} is mostly a folder or file of the project itself: a part of it is newer "
        f"than the other, or another {package} comes first on the search path.",
        fix=f"see what is imported (python -c 'import {home}; print({home}.__file__)'), and bring "
        f"all files of the project to one state (git pull); if {package} is a library, upgrade it",
        source=_IMPORT_SYSTEM,
    )


def name_without_home(name: str) -> Answer:
    """The answer about a name if the text does not show the module."""
    return Answer(
        title=f"{name} is not in the module that it is imported from",
        cause="another release of that package is installed than the code needs, the package was "
        "not installed completely, or a file of yours of its name is imported instead.",
        fix="look at the line of the traceback (from … import): install the release that the code "
        "names in its requirements, and rename a file of yours that has the package's name",
        source=_IMPORT_SYSTEM,
    )


def missing_submodule(wanted: str) -> Answer:
    """The answer about a module of a package that is installed."""
    package = wanted.partition(".")[0]
    gone = gone_name(*wanted.rpartition(".")[::2])
    if gone is not None:
        return gone
    pip = distribution_of(wanted)
    return Answer(
        title=f"{package} is installed, and has no {wanted}",
        cause=f"another release of {package} is installed than the code or a saved file needs, its "
        f"files are incomplete, or a file or folder {package} of yours is imported instead.",
        fix=f"rename such a file; else install {package} again, in the release that the code needs",
        command=f"pip install -U --force-reinstall --no-deps {pip}",
        source=_IMPORT_SYSTEM,
    )


def shared_library(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    """How to get a shared library that is not found, if it is a common one."""
    name = match["library"]
    stem = re.split(r"[-.]", name)[0].rstrip("0123456789")
    row = table("libraries").get(stem)
    if row is None:
        return None
    what, _, command = row.partition(" | ")
    return Answer(
        title=f"A shared library is not found: {name}",
        cause=f"{name} is of {what}. ld.so looks into LD_LIBRARY_PATH and the folders of the "
        "system.",
        fix=f"{command}; if it is installed, add its folder to LD_LIBRARY_PATH or load its module",
        command=command,
        source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
    )


def value_without(owner: str, name: str) -> Answer | None:
    """The answer about a list, dict or number of Python that is used as an object of a library."""
    gone = gone_name(owner, name)
    if gone is not None or owner not in VALUES:
        return gone
    if name not in _OF_TENSORS:
        return Answer(
            title=f"A {owner} is used as an object that has {name}",
            cause=f"the line expects an object with {name} (a configuration, a model, a data set), "
            f"and gets a {owner} of Python: a name or a path instead of what it stands for, the "
            "contents of a JSON file, or the result of another release of a library.",
            fix="look at the last line of your code in the traceback, and print what it passes on: "
            "load the object of that name (from_pretrained, open, json.load), or use its keys",
            source="https://docs.python.org/3/library/exceptions.html",
        )
    return Answer(
        title=f"A {owner} is used as an object that has {name}",
        cause=f"the line expects a tensor, a batch or a result with {name}, and gets a {owner} of "
        "Python.",
        fix='look at the line of your code in the traceback: tokenize with return_tensors="pt", '
        'call torch.tensor(…) or set_format("torch") on data, use batch["…"] for a dict, and '
        "give the function one object and not a list",
        source="https://docs.python.org/3/library/exceptions.html",
    )


def class_of_several(owner: str, name: str) -> Answer | None:
    """The answer about a class of which the name does not show the library."""
    package = table("classes").get(owner)
    if package is None:
        return None
    gone = gone_name(owner, name)
    if gone is not None:
        return gone
    return Answer(
        title=f"{owner} has no {name}: another release of {package} is installed than the code "
        "needs",
        cause=f"a {owner} is mostly of {package}, whatever library uses it; {name} was added in a "
        f"later release, or removed.",
        fix=f"upgrade {package}, and start Python again; if it is the newest already, it has "
        f"removed {name}: upgrade the library that the traceback names",
        command=f"pip install -U {distribution_of(package)}",
        source=f"https://pypi.org/project/{distribution_of(package)}/",
    )


def _passed_through(caller: str, called: str, name: str, failure: Failure) -> Answer:
    """The answer about an argument of a call of yours that a library hands on as it is."""
    at = ""
    own = [frame for frame in failure.frames if not frame.package]
    if own:
        at = f" ({own[-1].file}, line {own[-1].line})"
    return Answer(
        title=f"{called} does not take {name}, which your code gives to {caller}",
        cause=f"{caller} hands the arguments of your call{at} on to a class that has no {name}: "
        "it is misspelled, of another model or release, or of a copy of the library that the "
        "project has changed.",
        fix=f"remove {name} from the call; if the project comes with its own {caller}, install "
        "that (pip install -e its folder)",
    )


def refused_argument(called: str, name: str, failure: Failure) -> Answer | None:
    """The answer about an argument that a callable of a library that was not read does not take."""
    caller = caller_of(failure)
    if not failure.frames:
        return None
    if caller and "**" in failure.frames[-1].code:
        return _passed_through(caller, called, name, failure)
    if caller:
        pip = distribution_of(caller)
        return Answer(
            title=f"{caller} and a library that it uses do not fit each other",
            cause=f"{caller} passes {name} to {called}, which does not take it: one of the two is "
            "too old for the other.",
            fix=f"upgrade {caller} and the library that has {called.partition('.')[0]}; if "
            "that does not help, install the release of it from the time of the other",
            command=f"pip install -U {pip}",
        )
    return Answer(
        title=f"{called} does not take {name}",
        cause=f"your code passes it; {called} has been renamed, has lost it, or is another "
        "function than the code takes for granted.",
        fix=f"remove {name} there, or see what is taken: python -c 'help(…)'; if {called} is of "
        "a library, install the release that the code was written for",
    )

"""Errors that a library's public interface explains: an argument, a name, a module, an option.

``cputune/stack/interface.py`` knows which releases have it, so no row per error is needed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

from cputune.doctor.other_libraries import (
    VALUES,
    class_of_several,
    distribution_of,
    gone_argument,
    missing_submodule,
    name_without_home,
    other_name,
    refused_argument,
    shared_library,
    table,
    value_without,
)
from cputune.doctor.overridden import override_of, positional
from cputune.doctor.release_answers import Answer, Question, Versions, between
from cputune.doctor.tensor_sizes import answer_of_sizes
from cputune.stack import interface
from cputune.stack.tables import Feature, load
from cputune.text.failure_log import Failure


def answer_of(failure: Failure, versions: Versions) -> Answer | None:
    """The answer of the interface tables to an exception or a refused command line; else None."""
    message = failure.whole
    for pattern, answer in _PATTERNS:
        match = pattern.search(message)
        if match is not None:
            made = answer(match, failure, versions)
            if made is not None:
                return made
    return answer_of_sizes(message)


# --- arguments --------------------------------------------------------------------------

# The classes that scripts call most; Python before 3.10 does not name the class in its message.
_PREFERRED = (
    "TrainingArguments",
    "Trainer",
    "Accelerator",
    "Seq2SeqTrainingArguments",
    "Seq2SeqTrainer",
    "SFTConfig",
    "SFTTrainer",
    "LoraConfig",
    "load_dataset",
)


# Every model has one, with its own arguments.
_OF_MODELS = ("forward", "__call__")


def _unexpected(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    owner = (match["owner"] or "").rpartition(".")[2]
    gone = gone_argument(owner, match["name"])
    return gone or _unexpected_by(owner, match, failure, versions)


def _unexpected_by(
    owner: str, match: re.Match[str], failure: Failure, versions: Versions
) -> Answer | None:
    function, name = match["function"], match["name"]
    if function == "__init__" and owner:
        called = owner
    else:
        called = f"{owner}.{function}".lstrip(".")
    written = called
    package, called = _callable(called, name, failure)
    if not package:
        overridden = override_of(function, name, failure)
        if function in _OF_MODELS:
            return overridden
        return overridden or refused_argument(written, name, failure)
    caller = _caller_of(called, failure)
    passes_on = any("**" in frame.code for frame in failure.frames[-1:])
    if caller and passes_on and interface.argument(package, called, name) is None:
        return _passed_on(caller, called, name)
    if caller in interface.PACKAGES:
        overridden = override_of(function, name, failure)
        return overridden or _called_by_library(caller, package, called, name)
    if caller:
        return None  # a class of that library, which has the same name
    presence = interface.argument(package, called, name)
    if presence is not None and presence.always and presence.still and not owner:
        if package == "torch":  # one release was read
            return Answer(
                title=f"torch is older than the code, or {called} is another function",
                cause=f"{called} of torch {interface.newest('torch')} takes {name}.",
                fix=f"upgrade torch; if it is new, look at the call: another library or a file of "
                f"yours has a {called} too",
            )
        return Answer(
            title=f"{name} is an argument of {called}, and was given to something else",
            cause=f"every release of {package} that was read takes it there.",
            fix=f"give {name} to {called}",
        )
    if presence is None:
        return _never_taken(package, called, function, name, failure)
    return _of_class(package, called, "takes", name, presence, failure, versions)


def _never_taken(
    package: str, called: str, function: str, name: str, failure: Failure
) -> Answer | None:
    """The answer about an argument that no release takes."""
    if function in _OF_MODELS:
        return None
    if not _is_called_by_you(function, failure):
        overridden = override_of(function, name, failure)
        if overridden:
            return overridden
    return _never(package, called, name, failure)


def _is_called_by_you(function: str, failure: Failure) -> bool:
    """Whether a line of your own calls the function by its name."""
    return any(not one.package and f".{function}(" in one.code for one in failure.frames[-1:])


def _passed_on(caller: str, called: str, name: str) -> Answer:
    """The answer about an argument that a library takes from an object of yours."""
    return Answer(
        title=f"{called} does not take {name}, which {caller} passes on from your arguments",
        cause=f"{caller} gives every field of the arguments or the configuration that it gets to "
        f"{called}: yours has the field {name}, from a class of your own or another release.",
        fix=f"use {called} itself for the arguments, keep {name} in a class apart, or install the "
        f"{caller} that the code was written for",
    )


def _caller_of(called: str, failure: Failure) -> str:
    """The library whose own code makes the call; empty if that is a script, or not shown."""
    for frame in failure.frames[-1:]:
        short = called.rpartition(".")[2]
        wraps = frame.package in interface.PACKAGES and f"{short}(" not in frame.code
        if frame.package not in ("", "python", "torch") and not wraps:
            return frame.package
    return ""


def _called_by_library(caller: str, package: str, called: str, name: str) -> Answer:
    """The answer about a call that no script has written: two releases do not fit."""
    if caller == package:
        return Answer(
            title=f"Files of two releases of {package} are mixed",
            cause=f"{package} itself passes {name} to its {called}, which does not take it: an "
            "installation was interrupted, or a notebook still has the older one loaded.",
            fix=f"install {package} again, and start Python again",
            command=f"pip install --force-reinstall --no-deps {package}",
        )
    return Answer(
        title=f"{caller} and {package} do not fit each other",
        cause=f"{caller} passes {name} to {called} of {package}, and this {package} does not take "
        "it: one of them is too old for the other.",
        fix="upgrade both; if a script needs the older one, `cputune doctor --stack installed` "
        "names releases that fit",
        command=f"pip install -U {caller} {package}",
    )


def _of_class(
    package: str,
    owner: str,
    verb: str,
    name: str,
    presence: interface.Presence,
    failure: Failure,
    versions: Versions,
    *,
    prefix: str = "",
) -> Answer | None:
    """The answer about an argument or an attribute of a class, with its older and newer names."""
    question = Question(
        package=package,
        owner=owner,
        verb=verb,
        name=f"{prefix}{name}",
        presence=presence,
        failure=failure,
        versions=versions,
        new=_new_name(package, owner, name),
        old=_old_name(package, owner, name),
    )
    return between(question)


def _callable(called: str, name: str, failure: Failure) -> tuple[str, str]:
    """Package and short name of what was called; empty if the tables do not know it."""
    if called in _OF_MODELS:
        return "", ""
    if not called.startswith("__"):
        for package in _nearest(failure):
            if interface.callables(package, called):
                return package, called
        return "", ""
    return _class_taking(name, failure)


def _class_taking(name: str, failure: Failure) -> tuple[str, str]:
    """Package and name of the class whose ``__init__`` was called, if anything shows it."""
    code = " ".join(frame.code for frame in failure.frames[-2:])
    candidates = _classes_with(name)
    for short, package in candidates.items():
        if re.search(rf"\b{short}\(", code):
            return package, short
    for short in _PREFERRED:
        if short in candidates:
            return candidates[short], short
    inside = {frame.package for frame in failure.frames[-1:]}
    for short, package in candidates.items():
        if package in inside:
            return package, short
    return "", ""


def _classes_with(argument: str) -> dict[str, str]:
    """The classes that take an argument, each with its package."""
    packages = dict[str, str]()
    for package in interface.PACKAGES:
        for full in interface.takers(package, argument):
            short = full.rpartition(":")[2]
            is_class = "." not in short and short[:1].isupper()
            if is_class:
                packages[short] = package
    return packages


def _nearest(failure: Failure) -> tuple[str, ...]:
    """The packages of the tables; those in the traceback come first."""
    passed = {frame.package for frame in failure.frames}
    return tuple(sorted(interface.PACKAGES, key=lambda package: package not in passed))


def _row_of(package: str, argument: str) -> Feature | None:
    """What ``stack.toml`` has about an argument of TrainingArguments, or None."""
    if package == "transformers":
        for row in load().transformers.arguments:
            if row.name == argument:
                return row
    return None


def _new_name(package: str, called: str, name: str) -> str:
    """What replaces a removed argument: a new name, or another callable that takes it."""
    newest = interface.newest(package)
    row = _row_of(package, name)
    if row is not None and row.instead_after:
        return row.instead_after
    if newest is None:
        taken = frozenset[str]()
    else:
        taken = interface.arguments(package, called, newest)
    for new in interface.renamed(package, name):
        if new in taken:
            return new
    return _of_its_config(package, re.sub(r"Trainer$", "Config", called), name)


def _of_its_config(package: str, config: str, name: str) -> str:
    """The argument of a trainer's configuration that an argument of the trainer became."""
    presence = interface.argument(package, config, name)
    if presence is None:
        return ""
    if presence.still:
        return f"{name} of {config}"
    later = [new for new in interface.renamed(package, name) if new]
    for new in later:
        newer = interface.argument(package, config, new)
        if newer is not None and newer.still:
            return f"{name} of {config} ({presence.range_text()}, then {new})"
    return f"{name} of {config} ({presence.range_text()})"


def _old_name(package: str, called: str, name: str) -> str:
    """The earlier name of an argument."""
    row = _row_of(package, name)
    if row is not None:
        return row.instead_before or ""
    for old in interface.renamed_from(package, name):
        if interface.argument(package, called, old) is not None:
            return old
    return ""


def _never(package: str, called: str, name: str, failure: Failure) -> Answer | None:
    """An argument that no release has: a typo, or another class's."""
    newest = interface.newest(package)
    if newest is None:
        return None
    taken = interface.arguments(package, called, newest)
    near = difflib.get_close_matches(name, taken, n=1)
    passed = {frame.package for frame in failure.frames}
    is_class = called[:1].isupper()
    if not near and not is_class and package not in passed:
        return None  # many libraries have a function of that name
    cause = (
        f"no release of {package} from {interface.releases(package)[0]} to {newest} "
        "has this argument."
    )
    if near:
        fix = f"write {near[0]}"
    elif package in passed:
        fix = f"remove {name}, or pass it to the object that takes it"
    else:
        cause += f" Another library may have a {called} too."
        fix = (
            f"if your code imports {called} from another library, install the release of it that "
            f"the code was written for; else remove {name}, or pass it to the object that takes it"
        )
    return Answer(title=f"{called} of {package} takes {name} in no release", cause=cause, fix=fix)


# --- names and modules ------------------------------------------------------------------


def _import_name(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    home, name, path = match["home"], match["name"], match["path"] or ""
    package = home.partition(".")[0]
    if package in interface.PACKAGES and not path.endswith(f"/{package}.py"):
        return _name(package, home, name, failure, versions)
    if path and "-packages/" not in path:
        return Answer(
            title=f"{home} is your file, and has no {name}",
            cause=f"Python has imported {path}: it was found before any installed package of "
            "this name.",
            fix=f"define {name} there, or rename the file if a library was meant",
            source=_IMPORT_SYSTEM,
        )
    return other_name(home, name, failure)


def _bare_name(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    """Python before 3.7 does not name the module; the line of code does, if it is shown."""
    name = match["name"]
    code = " ".join(frame.code for frame in failure.frames[-1:])
    home = re.search(r"from ([\w.]+) import", code)
    if home is None:
        return name_without_home(name)
    package = home[1].partition(".")[0]
    if package in interface.PACKAGES:
        return _name(package, home[1], name, failure, versions)
    return other_name(home[1], name, failure)


def _name(
    package: str, home: str, name: str, failure: Failure, versions: Versions
) -> Answer | None:
    presence = interface.symbol(package, home, name)
    if presence is None:
        presence = interface.module(package, f"{home}.{name}")
    elsewhere = _elsewhere(package, home, name)
    if presence is None:
        if not elsewhere:
            return _in_no_release(package, home, name)
        return Answer(
            title=f"{name} is not in {home}",
            cause=f"no known release of {package} has {name} there.",
            fix=f"import it from {elsewhere}",
        )
    new = presence.instead or table("instead").get(name, "")
    if not new and elsewhere:
        new = f"{name} of {elsewhere}"
    if not new and not presence.still:
        new = _similar_now(package, home, name)
    question = Question(
        package=package,
        owner=home,
        verb="has",
        name=name,
        presence=presence,
        failure=failure,
        versions=versions,
        new=new,
        old=presence.instead,
    )
    return between(question)


def _similar_now(package: str, home: str, name: str) -> str:
    """A name of the newest release that is nearly the one that was removed; else empty."""
    near = difflib.get_close_matches(name, interface.names(package, home), n=3, cutoff=0.8)
    for other in near:
        presence = interface.symbol(package, home, other)
        if other != name and presence is not None and presence.still:
            return other
    return ""


def _in_no_release(package: str, home: str, name: str) -> Answer | None:
    """A name that no known release has: a typo, or of a release before the tables."""
    oldest, newest = interface.releases(package)[0], interface.newest(package)
    if newest is None:
        return None
    if package == "torch":  # one release was read
        return Answer(
            title=f"{home} of torch {newest} has no {name}",
            cause="an earlier release removed it, or it is a private name of another release.",
            fix="upgrade the library that imports it, or torch if yours is older",
        )
    near = difflib.get_close_matches(name, interface.names(package, home), n=1, cutoff=0.9)
    if near:
        fix = f"use {near[0]}, or upgrade what imports it"
    else:
        fix = (
            f"look in the requirements of the project whose code this is: it needs its own copy "
            f"of {package} (installed from its repository), or a release before {oldest}; a newer "
            "release of that project may not need it"
        )
    return Answer(
        title=f"{home} has no {name}, in no release of {package} from {oldest} to {newest}",
        cause=f"the code was written for a changed {package}, for an older or a newer release, or "
        "the name is misspelled.",
        fix=fix,
    )


def _elsewhere(package: str, home: str, name: str) -> str:
    """The shortest module that has this name in the newest release, or empty."""
    newest = interface.newest(package)
    if newest is None:
        return ""
    there = (
        place
        for place, presence in interface.homes(package, name).items()
        if place != home and presence.at(newest)
    )
    return min(there, key=lambda place: (place.count("."), len(place)), default="")


def _module(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    wanted = match["name"]
    package, _, below = wanted.partition(".")
    if package not in interface.PACKAGES and below and wanted not in table("distributions"):
        return missing_submodule(wanted)
    if not below or package not in interface.PACKAGES:
        return _distribution(wanted)
    presence = interface.module(package, wanted)
    if presence is None:
        moved = _moved_module(package, below)
        if moved:
            return Answer(
                title=f"{package} 4 and later have {wanted} at another place",
                cause=f"{wanted} is now {moved}.",
                fix=f"import from {moved}, or the name from {package} itself; if a library "
                "imports it, upgrade that library",
            )
        return Answer(
            title=f"{package} has no module {wanted}",
            cause=f"no known release of {package} has it.",
            fix=f"upgrade the library that imports it; a "
            f"file {package}.py of yours also hides the library",
        )
    if package == "torch" and presence.always and presence.still and not presence.instead:
        return Answer(
            title="A file or folder of yours is imported instead of torch, or torch is older",
            cause=f"{wanted} is part of torch {interface.newest('torch')}: a torch.py or a "
            "folder torch "
            "of yours hides it, or the torch that ran does not have it yet.",
            fix="rename your file or folder and remove its __pycache__; without one, upgrade torch",
        )
    question = Question(
        package=package,
        owner=wanted,
        verb="exists",
        presence=presence,
        failure=failure,
        versions=versions,
        new=presence.instead,
        old=presence.instead,
    )
    return between(question)


_IMPORT_SYSTEM = "https://docs.python.org/3/library/sys_path_init.html"


def _moved_module(package: str, below: str) -> str:
    """The place of a model's module (``modeling_bert``) in transformers since 4.0."""
    family = re.fullmatch(r"(?:modeling|tokenization|configuration)_(?:tf_)?([a-z0-9]+)", below)
    if package != "transformers" or family is None:
        return ""
    moved = f"transformers.models.{family[1]}.{below}"
    if interface.module(package, moved) is None:
        return ""
    return moved


def _distribution(wanted: str) -> Answer:
    names = table("distributions")
    name = names.get(wanted) or names.get(wanted.partition(".")[0])
    if name is None:
        return Answer(
            title=f"{wanted} is not installed in the Python that ran, or not on its search path",
            cause="Python looks in the folder of the script, in PYTHONPATH and in its own "
            "packages.",
            fix=f"install the package of {wanted} with python -m pip; if it is a file of yours, "
            "start the script "
            "from its folder or add that to PYTHONPATH",
            source=_IMPORT_SYSTEM,
        )
    return Answer(
        title=f"{name} is not installed in the Python that ran",
        cause="pip installs into the environment of the Python that it belongs to; another "
        "python, or a "
        "launcher of another environment, does not see it.",
        fix="install it with the python that trains: python -m pip, and check `which python "
        "torchrun`",
        command=f"python -m pip install {name}",
        source="https://docs.python.org/3/installing/index.html",
    )


def _module_attribute(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    home, name = match["home"], match["name"]
    package = home.partition(".")[0]
    if package not in interface.PACKAGES:
        return other_name(home, name, failure)
    return _name(package, home, name, failure, versions)


def _member(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    owner, name = match["owner"] or match["type"], match["name"]
    home, _, short = owner.rpartition(".")
    if home and home.partition(".")[0] not in interface.PACKAGES:
        return other_name(f"{home}.{short}", name, failure)
    owner = short
    if not home and owner in VALUES:
        return value_without(owner, name)
    shared = class_of_several(owner, name)
    if match["owner"] and shared is not None:
        return shared
    for package in _nearest(failure):
        presence = interface.member(package, owner, name)
        always = presence is not None and presence.always and presence.still
        if always and owner.endswith("State") and match["owner"]:
            return _not_set_up(package, owner, name)
        if presence is not None:
            if always and match["owner"]:
                return _other_class(package, owner, name)
            if match["owner"] and _asks_itself(package, name, failure):
                return _asked_by_newer(package, owner, name, presence, failure)
            return _of_class(package, owner, "has", name, presence, failure, versions)
    return value_without(owner, name) or _misspelled(owner, name, failure)


def _misspelled(owner: str, name: str, failure: Failure) -> Answer | None:
    """The answer about an attribute that is nearly a field of the class."""
    for package in _nearest(failure):
        newest = interface.newest(package)
        if newest is None or not interface.callables(package, owner):
            continue
        fields = interface.arguments(package, owner, newest)
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
        if near:
            return Answer(
                title=f"{owner} of {package} has {near[0]}, and no {name}",
                cause=f"no release of {package} that was read has {name} there.",
                fix=f"write {near[0]}",
            )
    return None


def _asks_itself(package: str, name: str, failure: Failure) -> bool:
    """Whether a line of the library asks for it, so that the release that ran knows it."""
    last = failure.frames[-1:]
    return any(one.package == package and f".{name}" in one.code for one in last)


def _asked_by_newer(
    package: str, owner: str, name: str, presence: interface.Presence, failure: Failure
) -> Answer:
    """An object of a library's class of the same name, which is older than what asks it."""
    since = f"{presence.first.major}.{presence.first.minor}"
    others = [one.package for one in failure.frames]
    others = [one for one in others if one not in ("", "python", "torch", package)]
    library = f"the library whose {owner} this is"
    command = None
    if others:
        library = others[-1]
        command = f"pip install -U {distribution_of(others[-1])}"
    return Answer(
        title=f"This {owner} is another class than that of {package}, and older",
        cause=f"{package} itself asks for {name}, which its own {owner} has "
        f"{presence.range_text()}. The object comes from a library that has a class of that name "
        "(setfit, sentence_transformers), or was saved by an older release.",
        fix=f"upgrade {library}; if it has no newer release, install {package} below {since}",
        command=command,
    )


def _not_set_up(package: str, owner: str, name: str) -> Answer:
    """An object without an attribute that its class has in every release."""
    oldest = interface.releases(package)[0]
    return Answer(
        title=f"This {owner} was not set up: it has no {name} yet",
        cause=f"{owner} of {package} has {name} in every release from {oldest} on. The code that "
        "sets it did not run: an earlier error ended it, the state of accelerate was reset or is "
        "of a second Accelerator, or a class of yours does not call super().__init__().",
        fix="look at the first error above this one; build the Accelerator or the "
        "TrainingArguments before what uses them, and upgrade the libraries together",
        command="pip install -U transformers accelerate",
        source="huggingface/accelerate#2564",
    )


def _other_class(package: str, owner: str, name: str) -> Answer:
    """An object lacks what the class of its name has in every release."""
    oldest = interface.releases(package)[0]
    return Answer(
        title=f"{package} is older than {oldest}, or this {owner} is another class of that name",
        cause=f"{owner} of {package} has {name} in every release from {oldest} on, and the object "
        f"in this error has not: it is of a class of that name in another library or in your "
        f"code, or of a {package} before {oldest}.",
        fix=f"print type(object).__module__ at that line: if it is not {package}, correct the "
        f"import or upgrade that library; if it is, upgrade {package}",
    )


# --- options of a command line ----------------------------------------------------------


def _options(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    given = re.findall(r"--[A-Za-z][\w-]*", match["words"])
    for word in given:
        answer = _option(word, failure, versions)
        if answer is not None:
            return answer
    return None


def _option(word: str, failure: Failure, versions: Versions) -> Answer | None:
    name = word.lstrip("-").replace("-", "_")
    of_launcher = re.search(
        r"\baccelerate\b.*: error|\blaunch\b.*: error|torchrun: error", failure.text
    )
    for package, called in (("transformers", "TrainingArguments"), ("trl", "SFTConfig")):
        presence = interface.argument(package, called, name)
        if presence is not None and not of_launcher:
            if presence.always and presence.still:
                break
            return _of_class(
                package, called, "takes", name, presence, failure, versions, prefix="--"
            )
    places = interface.option("accelerate", word) or interface.option("accelerate", f"--{name}")
    launch = next((p for place, p in places.items() if place.endswith("commands.launch")), None)
    if launch is None:
        return None
    if of_launcher or not launch.still:
        question = Question(
            package="accelerate",
            owner="accelerate launch",
            verb="takes",
            name=word,
            presence=launch,
            failure=failure,
            versions=versions,
        )
        return between(question)
    return Answer(
        title=f"{word} is an option of accelerate launch, and was given to the script",
        cause="a launcher reads the options before the script; the script gets those after it.",
        fix=f"put {word} before the name of the script",
    )


def _config_keys(match: re.Match[str], failure: Failure, versions: Versions) -> Answer | None:
    keys = re.findall(r"\w+", match["keys"])
    rows = {row.name: row for row in load().accelerate.keys}
    for key in keys:
        row = rows.get(key)
        if row is None:
            continue
        since = ""
        if row.first:
            since = f"{row.first[0]}.{row.first[1]}"
        if row.last is not None:
            return Answer(
                title=f"accelerate no longer knows the key {key}",
                cause=f"accelerate refuses a file with an "
                f"unknown key; {key} was removed after {row.last[0]}.{row.last[1]}.",
                fix=f"remove {key} from the file in the message",
                source="huggingface/accelerate#1935",
            )
        return Answer(
            title=f"The configuration file is of a newer accelerate: {key}",
            cause=f"accelerate refuses a file with an unknown key; it knows {key} from {since} on.",
            fix=f"install accelerate {since} or later, or remove "
            f"{key} from the file in the message",
            command=f"pip install -U 'accelerate>={since}'",
            source="huggingface/accelerate#1935",
        )
    return Answer(
        title=f"accelerate does not know the key {', '.join(keys)}",
        cause="accelerate refuses a configuration file with an unknown key.",
        fix="upgrade accelerate, or remove the key from the file in the message",
        command="pip install -U accelerate",
        source="huggingface/accelerate#1935",
    )


_Handler = Callable[[re.Match[str], Failure, Versions], "Answer | None"]
_PATTERNS: tuple[tuple[re.Pattern[str], _Handler], ...] = (
    (
        re.compile(
            r"(?:(?P<owner>[\w.<>]+)\.)?(?P<function>\w+)\(\) got an unexpected keyword "
            r"argument '(?P<name>\w+)'"
        ),
        _unexpected,
    ),
    (
        re.compile(
            r"(?:[\w.<>]+\.)?(?P<function>\w+)\(\) takes (?:from \d+ to )?(?P<taken>\d+) "
            r"positional arguments? but (?P<given>\d+) (?:was|were) given"
        ),
        positional,
    ),
    (
        re.compile(
            r"cannot import name '(?P<name>\w+)' from (?:partially initialized module "
            r")?'(?P<home>[\w.]+)'?"
            r"(?: \((?:most likely[^)]*\) \()?(?P<path>[^)]*)\))?"
        ),
        _import_name,
    ),
    (re.compile(r"cannot import name '?(?P<name>\w+)'?(?! from)$", re.MULTILINE), _bare_name),
    (re.compile(r"No module named '?(?P<name>\w+(?:\.\w+)*)'?(?!.*is not a package)"), _module),
    (re.compile(r"module '(?P<home>[\w.]+)' has no attribute '(?P<name>\w+)'"), _module_attribute),
    (re.compile(r"No (?P<home>[\w.]+) attribute (?P<name>\w+)"), _module_attribute),
    (
        re.compile(
            r"(?:'(?P<owner>\w+)' object|type object '(?P<type>[\w.]+)') has no attribute "
            r"'(?P<name>\w+)'"
        ),
        _member,
    ),
    (re.compile(r"unrecognized arguments?:? (?P<words>.*--.*)"), _options),
    (re.compile(r"not used by the HfArgumentParser:\s*(?P<words>.*)"), _options),
    (re.compile(r"No such option:? (?P<words>--.*)"), _options),
    (
        re.compile(r"(?P<library>lib[\w+-]+?\.so[\w.]*): cannot open shared object file"),
        shared_library,
    ),
    (re.compile(r"config file at .* had unknown keys \(\[(?P<keys>[^\]]*)\]\)"), _config_keys),
)


def raised_by(failure: Failure) -> str:
    """Which releases raise a message; empty if the tables do not have it."""
    if failure.kind != "exception" or not failure.message:
        return ""
    messages = interface.messages(failure.message)
    if not messages:
        return ""
    nearest = _in_traceback(messages, failure)
    presence = nearest.presence
    for each in messages:
        if each.package == nearest.package and each.module == nearest.module:
            presence = presence | each.presence
    releases = presence.range_text() or "all known releases"
    return f"{nearest.module} of {nearest.package} raises it ({releases})"


def _in_traceback(messages: Iterable[interface.Message], failure: Failure) -> interface.Message:
    passed = [frame.module for frame in failure.frames]
    return max(messages, key=lambda each: (each.module in passed, len(each.template)))

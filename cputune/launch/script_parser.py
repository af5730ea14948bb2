"""Which command line a training script parses: that of TrainingArguments, or one of its own.

A parser of transformers or TRL makes an option of each field of the dataclasses that it gets.
TrainingArguments read a flag only if they, or a subclass, are among them. The script is parsed and
never run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Reader = Literal["trainer", "its own", "unknown"]

_ADDS = ("add_argument", "option", "Option", "add_option")
"""Functions of argparse, click and typer that declare the option in their first words."""
_OTHER_PARSERS = ("argparse", "click", "typer", "fire", "absl", "hydra", "tyro", "optparse")
_TRL_OWN = ("ModelConfig", "DatasetMixtureConfig")
"""Dataclasses of TRL whose names end as those of its TrainingArguments do."""


def reader_in(text: str, flag: str) -> Reader | None:
    """What reads a flag of a script with this text; None if the text is not Python."""
    script = _parsed(text)
    if script is None:
        return None
    name = flag.lstrip("-").replace("-", "_")
    if flag in script.options or name in script.fields:
        return "its own"
    if script.trainer:
        return "trainer"
    if script.unknown:
        return "unknown"
    if script.classes or script.other_parser or script.makes_arguments:
        return "its own"
    if not script.named:
        return "its own"
    if "TrainingArguments" in text:
        return "trainer"
    return "unknown"


def parses_trainers(text: str) -> bool | None:
    """Whether a script gets TrainingArguments from its command line, and makes none itself.

    None if the text is not Python.
    """
    script = _parsed(text)
    if script is None:
        return None
    return script.trainer and not script.makes_arguments


@dataclass
class _Script:
    """What the syntax of a script says of its parsers.

    Attributes:
        options: words that its own parser declares.
        fields: fields of parsed dataclasses that the script declares itself.
        classes: a parser gets dataclasses.
        trainer: TrainingArguments, or a subclass, are among them.
        unknown: a dataclass is among them that the script does not show.
        named: TrainingArguments or a parser of dataclasses are named at all.
        makes_arguments: TrainingArguments are made from values, not parsed.
    """

    options: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    classes: bool = False
    trainer: bool = False
    unknown: bool = False
    named: bool = False
    other_parser: bool = False
    makes_arguments: bool = False


def _parsed(text: str) -> _Script | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its texts
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = _Names()
    calls = list[ast.Call]()
    for node in ast.walk(tree):
        names.add(node)
        if isinstance(node, ast.Call):
            calls.append(node)
    script = _Script(other_parser=any(one in names.modules for one in _OTHER_PARSERS))
    script.named = "TrainingArguments" in text or "HfArgumentParser" in text or "TrlParser" in text
    for call in calls:
        program = _last_name(call.func)
        if program in _ADDS or program.startswith("DEFINE_"):
            script.options.update(_declared(call, program))
        elif program.endswith("ArgumentParser") or program == "TrlParser":
            for given in _given(call):
                for one in names.classes_in(given):
                    script.classes = True
                    _add_class(one, names, script)
        elif program.endswith("TrainingArguments") and (call.args or call.keywords):
            script.makes_arguments = True
    return script


def _declared(call: ast.Call, program: str) -> Iterator[str]:
    """The words of an option that a call declares."""
    for one in call.args:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            if program.startswith("DEFINE_"):
                yield f"--{one.value}"
                return
            yield one.value.partition("/")[0]


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """The dataclasses that a parser is made of: its first argument."""
    if call.args:
        yield call.args[0]
    for keyword in call.keywords:
        if keyword.arg == "dataclass_types":
            yield keyword.value


@dataclass
class _Names:
    """What the names of a script mean: classes, imports, and variables that hold tuples."""

    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    tuples: dict[str, ast.expr] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)

    def add(self, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self.modules.add(alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            self.modules.add(module.partition(".")[0])
            for alias in node.names:
                self.imported[alias.asname or alias.name] = (module, alias.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.tuples[target.id] = node.value

    def classes_in(self, node: ast.expr) -> Iterator[ast.expr]:
        """The classes of a tuple or list, also of one in a variable."""
        if isinstance(node, ast.Name):
            node = self.tuples.get(node.id, node)
        if isinstance(node, ast.Tuple | ast.List):
            yield from node.elts
        elif isinstance(node, ast.Name | ast.Attribute):
            yield node


def _add_class(node: ast.expr, names: _Names, script: _Script) -> None:
    """Note a class that a parser gets: its fields, and whether it is one of TrainingArguments."""
    seen, waiting = set[str](), [node]
    while waiting:
        one = waiting.pop()
        name = _last_name(one)
        own = names.classes.get(name)
        if own is None or name in seen:
            _add_foreign(name, names, script)
            continue
        seen.add(name)
        waiting += own.bases
        for statement in own.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                script.fields.add(statement.target.id)


def _add_foreign(name: str, names: _Names, script: _Script) -> None:
    """Note a class that is not in the script: by its name, and by what it is imported from."""
    module, original = names.imported.get(name, ("", name))
    of_trl = module.partition(".")[0] == "trl" and original not in _TRL_OWN
    if "TrainingArguments" in original or (of_trl and original.endswith("Config")):
        script.trainer = True
    elif original not in ("object", "ABC", "Generic") and module.partition(".")[0] != "trl":
        script.unknown = True


def _last_name(node: ast.expr) -> str:
    """``HfArgumentParser`` of ``transformers.HfArgumentParser``; "" of what has no name."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return ""

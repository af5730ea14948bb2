"""What a training script is: by its text, if that can be read, else by its name and arguments.

Also the batch that arguments of TrainingArguments ask for.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cputune.launch.located_words import number_of, value_of

Reader = Literal["trainer", "its own", "unknown"]

# Functions of argparse, click and typer that declare the option in their first words.
_ADDS = ("add_argument", "option", "Option", "add_option")
_OTHER_PARSERS = ("argparse", "click", "typer", "fire", "absl", "hydra", "tyro", "optparse")
# Dataclasses of TRL whose names end as those of its TrainingArguments do.
_TRL_OWN = ("ModelConfig", "DatasetMixtureConfig")


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


# Arguments that show that a script parses TrainingArguments.
TRAINER = ("--output_dir", "--do_train", "--per_device_train_batch_size", "--bf16", "--fp16")
# Arguments that decide how many samples an optimizer step takes.
BATCH_ARGUMENTS = (
    "--per_device_train_batch_size",
    "--per_gpu_train_batch_size",
    "--gradient_accumulation_steps",
)
_BY_ACCELERATE = re.compile(
    r"\baccelerate\b|\bAccelerator\b|\btransformers\b|\btrl\b|sentence_transformers"
)
_OWN_RANKS = re.compile(r"init_process_group\(|DistributedDataParallel|\blightning\b|\bhorovod\b")
_OF_A_LIBRARY = re.compile(r"transformers|accelerate|lightning|\btrl\b|Trainer|Accelerator")
_PARSED = re.compile(r"HfArgumentParser\(\s*[\[(]?[\w\s.,]*TrainingArguments")
_ASKS_FOR_CPU = re.compile(r"\b(?:use_cpu|no_cuda|cpu)['\"]?\s*[=:]\s*True|ACCELERATE_USE_CPU")
_MADE = re.compile(r"\bTrainingArguments\(\s*\w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text of a training script; "" if it is known to be empty."""

    text: str

    def reader_of(self, flag: str) -> Reader:
        """What reads this flag: TrainingArguments, its own parser, or what is not known."""
        reader = reader_in(self.text, flag)
        if reader is not None:
            return reader
        if re.search("TrainingArguments|HfArgumentParser", self.text):
            return "trainer"
        return "its own"

    @property
    def parses_arguments(self) -> bool:
        """Whether it takes TrainingArguments from its command line, and makes none itself."""
        parses = parses_trainers(self.text)
        if parses is not None:
            return parses
        return _PARSED.search(self.text) is not None and _MADE.search(self.text) is None

    @property
    def has_own_loop(self) -> bool:
        """Whether it uses torch, and no library that trains."""
        return "torch" in self.text and _OF_A_LIBRARY.search(self.text) is None

    @property
    def starts_own_ranks(self) -> bool:
        """Whether it starts its process group itself, without accelerate."""
        by_accelerate = _BY_ACCELERATE.search(self.text) is not None
        return not by_accelerate and _OWN_RANKS.search(self.text) is not None

    @property
    def asks_for_cpu(self) -> bool:
        """Whether it asks Trainer or accelerate for the CPU: ``use_cpu=True``, ``cpu=True``."""
        return _ASKS_FOR_CPU.search(self.text) is not None

    def takes_precision(self, precision: str, arguments: Sequence[str], framework: str) -> bool:
        """Whether it trains in this precision if only ACCELERATE_MIXED_PRECISION is set.

        An Accelerator reads the variable if the script names no precision. A Trainer trains in fp32
        unless it is given another one; those of TRL train in bf16.
        """
        all_text = " ".join([self.text, *arguments])
        if "mixed_precision" in all_text:
            return False
        if framework == "accelerate":
            return True
        if precision == "fp32":
            return re.search(r"bf16|fp16|\btrl\b", all_text) is None
        return "Accelerator(" in self.text and "Trainer" not in self.text


def is_example(name: str) -> bool:
    """Whether a script has the name of an example of transformers that uses Trainer."""
    return re.fullmatch(r"run_\w+\.py", name.rpartition("/")[2]) is not None


def are_trainers(arguments: Sequence[str]) -> bool:
    """Whether these are arguments of TrainingArguments."""
    return any(value_of(arguments, name) is not None for name in TRAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch of some arguments.

    Attributes:
        per_rank: samples of a rank in one batch; None if they do not say it, or with
            ``--auto_find_batch_size``.
        accumulation: batches of an optimizer step; None if they do not say it.
    """

    per_rank: int | None
    accumulation: int | None

    @property
    def per_step(self) -> int | None:
        """Samples of a rank in an optimizer step."""
        if self.per_rank is None:
            return None
        return self.per_rank * (self.accumulation or 1)


def batch_of(arguments: Sequence[str]) -> Batch:
    """The values of ``--per_device_train_batch_size`` and ``--gradient_accumulation_steps``."""
    per_rank = number_of(value_of(arguments, "--per_device_train_batch_size")) or None
    typed = value_of(arguments, "--gradient_accumulation_steps")
    accumulation = number_of(typed) or None
    unreadable = typed is not None and accumulation is None
    if unreadable or value_of(arguments, "--auto_find_batch_size") is not None:
        per_rank = None
    return Batch(per_rank=per_rank, accumulation=accumulation)

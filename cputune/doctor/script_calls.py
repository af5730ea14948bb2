"""What a script itself asks of the installed versions: IPEX, and arguments of TrainingArguments.

The text is read and nothing is run, so ``tune`` knows it before the first trial.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cputune.doctor.files.judge import flag_refused
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.doctor.interface_errors import answer_of
from cputune.doctor.release_answers import Answer
from cputune.errors import CannotError, UsageError
from cputune.host.facts import HostFacts
from cputune.host.files import exists, is_folder
from cputune.plans.training_command import script_file, script_text
from cputune.stack import interface
from cputune.stack.tables import load, parse, versions_of
from cputune.text.failure_log import Failure

_CHANGES_PATH = re.compile(r"\bsys\.path\b|addsitedir|\bimportlib\b|\brunpy\b|\bchdir\b")
_PACKAGE = "transformers"
_CLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments")
_INTEL = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "torch_ccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """An argument of TrainingArguments. ``is_certain``: nothing decides whether the line runs."""

    owner: str
    argument: str
    line: int
    is_certain: bool


def refused_arguments(text: str, script: str, facts: HostFacts) -> Iterator[Finding]:
    """The arguments of TrainingArguments in a script that the installed transformers refuses."""
    installed = facts.installed_versions
    version = parse(installed.get(_PACKAGE))
    if version is None:
        return
    newest = interface.newest(_PACKAGE)
    for call in _calls(text):
        presence = interface.argument(_PACKAGE, call.owner, call.argument)
        if presence is not None and presence.at(version):
            continue
        if presence is None and (newest is None or version > newest):
            continue  # the tables do not know this release
        message = f"{call.owner}.__init__() got an unexpected keyword argument '{call.argument}'"
        answer = answer_of(_raised("TypeError", message), installed)
        if answer is None:
            continue
        place = f"{script.rpartition('/')[2]}:{call.line} {call.owner}({call.argument}=…)"
        severity = None
        unsure = ""
        if not call.is_certain:
            severity, unsure = Severity.WARNING, ", if this line runs"
        yield flag_refused.finding(
            f"{place}: {answer.title}; {_PACKAGE} {version} is installed{unsure}",
            remedy=_sentence(answer),
            severity=severity,
        )


def require_possible(argv: Sequence[str], facts: HostFacts) -> None:
    """Raise CannotError if the installed versions certainly refuse what the script asks for.

    It is a finding of ``cputune doctor -- LAUNCH``, in its words. No plan could avoid it.
    """
    python = facts.training_python
    try:
        path, text = script_file(argv, python), script_text(argv, python)
    except UsageError:
        return
    findings = list[Finding]()
    moves_imports = changes_path(text)
    for name in imported_modules(text):
        advice = import_advice(name, facts)
        beside = exists(path.parent / f"{name}.py") or is_folder(path.parent / name)
        if advice is None or moves_imports or beside or python.has_module(name):
            continue
        findings.append(
            import_fails.finding(f"{path.name}: import {name}: not installed", remedy=advice[0])
        )
    findings += refused_arguments(text, str(path), facts)
    details = []
    for finding in findings:
        if finding.severity is Severity.ERROR:
            details.append(f"{finding.evidence}  [{finding.code}]\n  {finding.remedy}")
    if details:
        raise CannotError(
            f"{path.name} cannot train with the installed versions",
            hint="change these lines first: no plan can avoid this",
            details="\n".join(details),
        )


def imported_modules(text: str) -> tuple[str, ...]:
    """Top-level modules that a script always imports: not in try, def or if."""
    tree = _tree(text)
    if tree is None:
        return ()
    names = dict[str, None]()
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.name.partition(".")[0]] = None
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module.partition(".")[0]] = None
    names.pop("__future__", None)
    return tuple(names)


def changes_path(text: str) -> bool:
    """Whether a script changes the search path of modules."""
    return _CHANGES_PATH.search(text) is not None


def import_advice(module: str, facts: HostFacts) -> tuple[str, str | None] | None:
    """(what to do, command) if IPEX or the oneCCL bindings are imported and are not installed.

    None for other modules.
    """
    if module not in _INTEL:
        return None
    torch = versions_of(facts).torch
    releases = load().ipex_for(torch)
    if module != _INTEL[0] or not releases:
        return _take_out(module, str(torch or "")), None
    package = f"intel-extension-for-pytorch=={releases[0].version}"
    return f"Install the IPEX for torch {torch}, or remove the import.", f"pip install {package}"


def _take_out(module: str, torch: str) -> str:
    """Torch itself replaces IPEX, and gloo replaces the oneCCL bindings."""
    last = load().ipex[-1].version
    if module == _INTEL[0]:
        instead = "and ipex.optimize(…): torch itself runs bf16 and AMX (--bf16 --use_cpu)"
    else:
        instead = "and train with gloo (--ddp_backend gloo)"
    ended = f"{module} {last} is the last release"
    if torch:
        ended += f", and no release is for torch {torch}"
    return f"Remove the import {instead}. {ended}."


def _raised(name: str, message: str) -> Failure:
    return Failure(kind="exception", line=1, text=f"{name}: {message}", name=name, message=message)


def _sentence(answer: Answer) -> str:
    return f"{answer.fix[:1].upper()}{answer.fix[1:]}."


def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its texts
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _calls(text: str) -> Iterator[_Call]:
    """The keywords of each call of a class that the script imports from transformers."""
    tree = _tree(text)
    if tree is None:
        return
    names = _names(tree)
    certain = set(_certain(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        owner = names.get(ast.unparse(node.func))
        for keyword in node.keywords:
            if owner is not None and keyword.arg is not None:
                yield _Call(
                    owner=owner,
                    argument=keyword.arg,
                    line=keyword.value.lineno,
                    is_certain=node in certain,
                )


def _names(tree: ast.Module) -> dict[str, str]:
    """What the script calls these classes: ``{"transformers.TrainingArguments": …}``."""
    names = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            for alias in node.names:
                if alias.name in _CLASSES:
                    names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == _PACKAGE:
                    module = alias.asname or alias.name
                    names.update({f"{module}.{name}": name for name in _CLASSES})
    return names


def _certain(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when the script does: not under a condition or in another function."""
    for statement in tree.body:
        body = [statement]
        if isinstance(statement, ast.FunctionDef) and statement.name == "main":
            body = list(statement.body)
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            body = list(statement.body)
        for each in body:
            if isinstance(each, (ast.Expr, ast.Assign, ast.AnnAssign)):
                yield from ast.walk(each)


@fault("launch-import", Severity.ERROR, under=("module-shadowed",))
def import_fails() -> None:
    """What the script imports cannot be imported

    Symptom: ModuleNotFoundError, "cannot import name", an undefined symbol, an end without a
    message.

    Cause: the typed Python really imported the script's top-level modules, with the search path and
    variables of this launch.

    Remedy: Install what is missing, or remove the file that hides it.

    Source: https://docs.python.org/3/library/sys_path_init.html
    """


CHECKS = checks_of(__name__)

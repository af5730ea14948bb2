"""The files that a training command names, and what a script imports from its own folder.

They are read and not run. Imported are modules and packages next to the script (of ``python -m``,
in the working folder), and their imports from there. Left out are modules on PYTHONPATH or
installed ones, and names that are computed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence

from cputune.host import Host

# Libraries that make no Trainer and no Accelerator for a script that names none.
KNOWN = frozenset(
    {
        *("accelerate", "datasets", "evaluate", "huggingface_hub", "matplotlib", "numpy", "pandas"),
        *("PIL", "safetensors", "scipy", "sklearn", "tokenizers", "torch", "torchvision", "tqdm"),
        *("transformers",),
    }
)
_RUNS_TEXT = re.compile(r"(?<![\w.])(?:exec|eval|__import__)\(|importlib|runpy|subprocess")


def unreachable_parts(script: str, host: Host) -> dict[str, str]:
    """Parts of a plan that no line of a script reaches, with the reason.

    They are found by reading the script and the files that it imports. Nothing is found if one of
    them cannot be read, imports another library, or runs text as code.
    """
    if not script.endswith(".py"):
        return {}
    paths = (script, *imported(script, host))
    local_modules = set[str]()
    for path in paths:
        folder, name = os.path.split(path)
        local_modules |= {name.removesuffix(".py"), os.path.basename(folder)}
    texts: list[str] = []
    for path in paths:
        text = text_of(path, host)
        tree = _tree(text) if text is not None else None
        if text is None or tree is None or _RUNS_TEXT.search(text):
            return {}
        if not _libraries(tree) <= (KNOWN | local_modules | sys.stdlib_module_names):
            return {}
        texts.append(text)
    text_of_all = "\n".join(texts)
    names_accelerator = re.search("accelerat", text_of_all, re.IGNORECASE) is not None
    names_trainer = re.search("Trainer|TrainingArguments", text_of_all) is not None
    if names_trainer and not names_accelerator:
        return {"loop": "the script names no Accelerator"}
    if names_accelerator and not names_trainer:
        return {"trainer": "the script names no Trainer"}
    return {}


def _libraries(tree: ast.Module) -> set[str]:
    """The first names of what a file imports, relative imports aside."""
    libraries: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            libraries.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            libraries.add(node.module.partition(".")[0])
    return libraries


def _tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its texts
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def digests(command: Iterable[str], host: Host) -> dict[str, str]:
    """Digests of the files that words name, and of the config.json of models among them.

    ``--train_file=FILE`` names one too. Unreadable files are left out; of a large file the first 16
    MiB count.
    """
    named: list[str] = []
    before = ""
    for word in command:
        name = word.rpartition("=")[2] if word.startswith("-") else word
        if before == "-m":
            named += module_files(word, host)
        else:
            named += [name, *imported(name, host), f"{name}/config.json"]
        before = word
    by_path = dict[str, str]()
    for path in named:
        text = text_of(path, host)
        if text is not None:
            by_path[path] = digest(text)
    return by_path


def digest(text: str) -> str:
    """Sixteen digits that tell one text from another."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def imported(script: str, host: Host) -> tuple[str, ...]:
    """The paths of what a script imports; none if it is not a file of Python."""
    if not script.endswith(".py"):
        return ()
    return _with_imports([script], os.path.dirname(script), host)[1:]


def module_files(name: str, host: Host) -> tuple[str, ...]:
    """The files that ``python -m NAME`` reads in this folder, and what they import."""
    parts = name.split(".")
    main = os.path.join(*parts, "__main__.py")
    files = list(_files_of(parts, "", host))
    if host.exists(main):
        files.append(main)
    return _with_imports(files, "", host)


def text_of(path: str, host: Host) -> str | None:
    """The text of a file; None if it cannot be read."""
    try:
        return host.read_text(path) if host.exists(path) else None
    except (OSError, ValueError):
        return None


def _with_imports(paths: Sequence[str], folder: str, host: Host) -> tuple[str, ...]:
    """The files, and what they import of ``folder``, each once."""
    files = list(paths)
    for path in files:  # it grows
        files += [module for module in _imported_by(path, folder, host) if module not in files]
    return tuple(dict.fromkeys(files))


def _imported_by(path: str, folder: str, host: Host) -> Iterator[str]:
    tree = _tree(text_of(path, host) or "")
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name.split("."), folder, host)
        elif isinstance(node, ast.ImportFrom):
            start = folder
            if node.level:
                start = os.path.normpath(os.path.join(path, *[".."] * node.level))
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files_of([*module, alias.name], start, host)


def _files_of(parts: Sequence[str], folder: str, host: Host) -> Iterator[str]:
    """The files that importing ``a.b.c`` reads: those of ``a``, of ``a.b`` and of ``a.b.c``."""
    for number in range(1, len(parts) + 1):
        stem = os.path.normpath(os.path.join(folder, *parts[:number]))
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if host.exists(path):
                yield path

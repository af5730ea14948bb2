"""The files that a training command names, and what a script imports from its own folder.

They are read and not run. Imported are modules and packages next to the script (of ``python -m``,
in the working folder), and their imports from there. Left out are modules on PYTHONPATH or
installed ones, and names that are computed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence

from cputune.host import Host


def digests(words: Iterable[str], host: Host) -> dict[str, str]:
    """Digests of the files that words name, and of the config.json of models among them.

    ``--train_file=FILE`` names one too. Unreadable files are left out; of a large file the first 16
    MiB count.
    """
    named: list[str] = []
    before = ""
    for word in words:
        name = word.rpartition("=")[2] if word.startswith("-") else word
        if before == "-m":
            named += module_files(word, host)
        else:
            named += [name, *imported(name, host), f"{name}/config.json"]
        before = word
    texts = {path: text_of(path, host) for path in named}
    return {path: digest(text) for path, text in texts.items() if text is not None}


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
    own = [*_files_of(parts, "", host), *([main] if host.exists(main) else [])]
    return _with_imports(own, "", host)


def text_of(path: str, host: Host) -> str | None:
    """The text of a file; None if it cannot be read."""
    try:
        return host.read_text(path) if host.exists(path) else None
    except (OSError, ValueError):
        return None


def _with_imports(paths: Sequence[str], folder: str, host: Host) -> tuple[str, ...]:
    """The files, and what they import of ``folder``, each once."""
    found = list(paths)
    for path in found:  # it grows
        found += [module for module in _imported_by(path, folder, host) if module not in found]
    return tuple(dict.fromkeys(found))


def _imported_by(path: str, folder: str, host: Host) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its texts
            tree = ast.parse(text_of(path, host) or "")
    except (SyntaxError, ValueError, RecursionError):
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

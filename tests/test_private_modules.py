"""One rule for private modules: a leading underscore means that only its own package imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, names out of modules included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def intrusions(path: Path) -> Iterator[str]:
    """Imports of a private module, or of a private name of a module, from outside its package."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "cputune":
            continue
        for at, part in enumerate(parts):
            owner = ".".join(parts[:at])
            private = part.startswith("_") and not part.startswith("__")
            if private and package != owner and not package.startswith(f"{owner}."):
                yield f"{path.relative_to(ROOT)} imports {name}"


def test_nobody_imports_what_is_private_elsewhere() -> None:
    files = [*(ROOT / "cputune").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    assert [said for path in sorted(files) for said in intrusions(path)] == []

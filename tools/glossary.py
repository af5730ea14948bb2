"""Keeps the words of `glossary.toml` out of new text: part of `make lint`.

    python tools/glossary.py            # fails if a room has more of them than its limit
    python tools/glossary.py --lower    # writes lower limits after text was rewritten

Checked are docstrings, comments and messages (string literals of three words or more) of each room
of cputune/, the pages, and the names of tests. "where" is counted apart: conditions begin with "if"
or "when".
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".toml")
PAGES = ("*.md", "docs/*.md", "recipes/*.md")
HISTORY = "CHANGELOG.md"
WHERE = re.compile(r"\bwhere\b", re.IGNORECASE)
NAME = re.compile(r"def test_(\w+)\(")
MESSAGE_WORDS = 3
"""A literal with fewer words is a name or a value."""
QUERY = re.compile(r"\s*(?:select|insert|delete|update)\b")
"""SQL has a "where" of its own."""

Text = tuple[int, str]
"""A line number and the text that begins there."""


def texts_of(source: str) -> Iterator[Text]:
    """Docstrings, comments and messages of a module."""
    inside_fstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            inside_fstrings.update(map(id, parts))
            yield node.lineno, " … ".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            long_enough = len(node.value.split()) >= MESSAGE_WORDS
            if long_enough and id(node) not in inside_fstrings and not QUERY.match(node.value):
                yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names_of(source: str) -> Iterator[Text]:
    """The names of tests, as words."""
    for number, line in enumerate(source.splitlines(), 1):
        for name in NAME.findall(line):
            yield number, name.replace("_", " ")


def files(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file that is checked, with the room that it counts for."""
    for path in sorted((root / "cputune").rglob("*.py")):
        parts = path.relative_to(root).parts
        yield "/".join(parts[:2]) if len(parts) > 2 else "cputune", path
    for path in sorted((root / "tests").rglob("*.py")):
        yield "tests", path
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            if path.name != HISTORY:
                yield "pages", path


def hits(root: Path, avoid: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[str, bool, str]]:
    """Each hit: its room, whether it is a "where", and a line that says what to write instead."""
    for room, path in files(root):
        source = path.read_text(encoding="utf-8")
        if room == "tests":
            texts = list(names_of(source))
        elif path.suffix == ".py":
            texts = list(texts_of(source))
        else:
            texts = list(enumerate(source.splitlines(), 1))
        for line, text in texts:
            place = f"{path.relative_to(root)}:{line}"
            for pattern, write in avoid:
                for match in pattern.finditer(text):
                    yield room, False, f'{place}: "{match[0]}": write: {write}'
            for _ in WHERE.finditer(text):
                yield room, True, f'{place}: "where": write: if, when; where is for places'


def table(path: Path) -> tuple[list[tuple[re.Pattern[str], str]], dict[str, list[int]]]:
    """The avoided phrases, and the limits by room."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    avoid = [(re.compile(row["pattern"], re.IGNORECASE), row["write"]) for row in read["avoid"]]
    return avoid, read["limits"]


def check(root: Path, path: Path, *, lower: bool = False) -> list[str]:
    """The lines to print: for each room above its limit its hits; empty if there is none."""
    avoid, limits = table(path)
    lines: dict[str, tuple[list[str], list[str]]] = {}
    for room, _ in files(root):
        lines.setdefault(room, ([], []))
    for room, is_where, line in hits(root, avoid):
        lines[room][is_where].append(line)
    report = []
    lowered = {}
    for room, kinds in lines.items():
        allowed = limits.get(room, [0, 0])
        counts = [len(kind) for kind in kinds]
        for kind, count, most in zip(kinds, counts, allowed, strict=True):
            if count > most:
                report += [*kind, f"{room}: {count} of these; {most} are allowed\n"]
        lowered[room] = [min(count, most) for count, most in zip(counts, allowed, strict=True)]
    if lower:
        head = path.read_text(encoding="utf-8").partition("[limits]")[0]
        rows = [f'"{room}" = {count}' for room, count in sorted(lowered.items()) if any(count)]
        path.write_text("\n".join([f"{head}[limits]", *rows, ""]), encoding="utf-8")
    return report


def main() -> None:
    """Print what is above a limit, and fail then."""
    report = check(ROOT, TABLE, lower="--lower" in sys.argv[1:])
    if report:
        sys.exit("\n".join(report))


if __name__ == "__main__":
    main()

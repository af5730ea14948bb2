"""Blocks as Markdown, to paste into an issue: headings, lists and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cputune.doctor import Finding
from cputune.records.shared_texts import Verdict
from cputune.report.writing import (
    COMMAND,
    Bars,
    Block,
    FindingRows,
    Heading,
    Labelled,
    Lines,
    Rows,
    source_urls,
)
from cputune.text.plain import visible


def markdown(blocks: Iterable[Block], title: str) -> str:
    """The blocks below a title. Text in them is escaped."""
    parts = [f"### {title}"]
    for block in blocks:
        text = "\n".join(_lines(block))
        if text:
            parts.append(text)
    return "\n\n".join(parts) + "\n"


def _lines(block: Block) -> Iterator[str]:
    if isinstance(block, Verdict):
        yield from _verdict(block)
    elif isinstance(block, Heading):
        yield f"#### {_plain(block.text)}"
    elif isinstance(block, Rows):
        yield from _table(block.headings, block.rows)
        if block.below:
            yield ""
            yield _plain(block.below)
    elif isinstance(block, Bars):
        rows = [(name, number, after) for name, number, _, after in block.rows]
        yield from _table(("", "", ""), rows)
    elif isinstance(block, FindingRows):
        for finding in block.findings:
            yield from _finding(finding, block)
    else:
        yield from _labelled(block)


def _verdict(verdict: Verdict) -> Iterator[str]:
    means, do, sure = verdict.lines()
    command = do.removeprefix("Do now: ")
    yield f"**{_plain(means)}**"
    yield ""
    if command.startswith("nothing"):
        yield f"- {_plain(do)}"
    else:
        yield f"- Do now: {_code(command)}"
    yield f"- {_plain(sure)}"


def _labelled(block: Labelled | Lines) -> Iterator[str]:
    pasted = {COMMAND}
    if isinstance(block, Labelled):
        rows = block.rows
        pasted.update(block.pasted)
    else:
        rows = block.lines
    for label, text in rows:
        value = _plain(text)
        if label in pasted:
            value = _code(text)
        name = label.strip()
        if name and name != COMMAND:
            value = f"{_plain(name)}: {value}"
        yield f"- {value}"


def _finding(finding: Finding, block: FindingRows) -> Iterator[str]:
    yield f"- **{finding.severity.value}: {_plain(finding.title)}** (`{finding.code}`)"
    if not block.brief:
        for line in finding.evidence.splitlines():
            yield f"  - {_plain(line)}"
    commands = (finding.command or "").splitlines()
    if not block.brief or not commands:
        yield f"  - {_plain(finding.remedy)}"
    for command in commands:
        yield f"  - {_code(command)}"
    links = []
    for url in source_urls(finding.source):
        if url.startswith("https://"):
            links.append(url)
    explained = _code(f"cputune doctor --explain {finding.code}")
    yield f"  - {', '.join([explained, *links])}"


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = tuple(headings)
    yield f"| {' | '.join(map(_cell, names))} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    return _plain(text) or " "


def _plain(text: str) -> str:
    """Escape text that Markdown would read as markup, a mention, or HTML."""
    clean = " ".join(visible(text).split())
    clean = re.sub(r"([\\`*|<>\[\]#]|(?<!\w)_|_(?!\w))", r"\\\1", clean)
    return re.sub(r"@(?=\w)", "@\u200b", clean)


def _code(text: str) -> str:
    clean = " ".join(visible(text).split())
    longest = max((len(run) for run in re.findall("`+", clean)), default=0)
    fence = "`" * (longest + 1)
    space = ""
    if longest:
        space = " "
    return f"{fence}{space}{clean}{space}{fence}"

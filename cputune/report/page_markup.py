"""HTML by small functions: text is escaped, whatever is in it, unless it was made here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from cputune.visible import visible


class Markup(str):
    """HTML that was made by ``tag``: all other text is escaped where it is put in."""

    __slots__ = ()


_VOID = ("meta", "br")


def tag(name: str, /, *inside: str, **attributes: str | int | None) -> Markup:
    """An element. ``_`` at an attribute's end is for Python's own words; None leaves it out."""
    opened = _opened(name, attributes)
    return Markup(opened if name in _VOID else f"{opened}{joined(*inside)}</{name}>")


def raw(name: str, text: str, /, **attributes: str | int | None) -> Markup:
    """A script or a style of our own, not escaped. Nothing from outside goes here."""
    return Markup(f"{_opened(name, attributes)}{text}</{name}>")


def _opened(name: str, attributes: Mapping[str, str | int | None]) -> str:
    said = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{''.join(said)}>"


def joined(*parts: str) -> Markup:
    """Elements and texts, one behind the other."""
    return Markup("".join(p if isinstance(p, Markup) else escape(visible(p)) for p in parts))


def data(identity: str, document: Any) -> Markup:
    """A JSON document for a script to read: no text in it can end the element."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return raw("script", text, id=identity, type="application/json")


def lines(text: str) -> Markup:
    """A text of several lines, for ``pre``."""
    return Markup("\n".join(escape(visible(line)) for line in text.splitlines()))


def table(caption: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Markup:
    """A table that scrolls by itself where the page is narrower; its first column names the row."""
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    inside = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", joined(*body)))
    return tag("div", inside, class_="scroll", role="region", aria_label=caption, tabindex=0)


def number(text: str) -> Markup:
    """A number with its interval, which is not broken into two lines."""
    return tag("span", text, class_="number")


def folded(head: str, *inside: str) -> Markup:
    """What only some want to read."""
    return tag("details", tag("summary", head), *inside)


def copied(text: str, label: str) -> Markup:
    """Text to copy, with the button that does it."""
    button = tag("button", "Copy", type="button", class_="copy", aria_label=f"Copy {label}")
    return tag("div", button, tag("pre", tag("code", lines(text)), tabindex=0), class_="copied")

"""The one cleaner of text that comes from outside and goes to a terminal or a line of a log."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""The text in one line, whatever a machine, a script or a file put into it.

    Control characters, line breaks and signs that turn the direction of writing appear as
    escapes (``\x1b``, ``\n``, ``\u202e``): they could clear the screen or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else repr(char)[1:-1] if char != "\t" else " " for char in text
    )

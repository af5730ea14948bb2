"""Formats text for a terminal: no control characters, numbers with enough digits."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30  # bytes


def visible(text: str) -> str:
    r"""The text as one safe line.

    Control characters, line breaks and signs that change the writing direction become escapes
    (``\x1b``, ``\n``, ``\u202e``), because they could clear the screen or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char == "\t":
        return " "
    if char.isprintable():
        return char
    return repr(char)[1:-1]


_ASCII = {
    **dict(zip("×–…→✓✗±", ("x", "-", "...", "->", "+", "x", "+-"), strict=True)),
    **dict.fromkeys("█▉▊▋▌├┤●", "#"),
    **dict.fromkeys("▍▎▏", "."),
    "─": "-",
    "│": "|",
    "·": ".",
    "▒": "=",
}


def spelled(error: UnicodeError) -> tuple[str, int]:
    r"""Replace characters that a stream cannot encode: ``x`` for ``×``, else an escape
    (``\u05d0``). An error handler of ``codecs``.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    plain = (_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(plain), error.end


def figure(value: float, digits: int = 3) -> str:
    """Round to this many significant digits, but keep whole numbers: ``22.5``, ``0.0013``,
    ``15300``.
    """
    if value >= 10**digits - 0.5:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def count(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"

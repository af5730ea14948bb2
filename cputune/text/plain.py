"""How text is written for people: cleaned of what a terminal obeys, numbers with enough digits."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30
"""Bytes, as the kernel counts them and people read them."""


def visible(text: str) -> str:
    r"""The text in one line, whatever a machine, a script or a file put into it.

    Control characters, line breaks and signs that turn the direction of writing appear as
    escapes (``\x1b``, ``\n``, ``\u202e``): they could clear the screen or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char == "\t":
        return " "
    return char if char.isprintable() else repr(char)[1:-1]


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
    r"""What stands for signs that a stream has not: ``x`` for ``×``; else escapes (``\u05d0``).

    An error handler of ``codecs``. Raises what is no error of encoding.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    plain = (_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(plain), error.end


def figure(value: float, digits: int = 3) -> str:
    """So many significant digits, whole ones all: ``22.5``, ``0.0013``, ``15300``."""
    return f"{value:.0f}" if value >= 10**digits - 0.5 else f"{value:.{digits}g}"


def count(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

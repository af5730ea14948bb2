"""Where text leaves the program: products on stdout, all else on stderr, colour by stream."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, TYPE_CHECKING, Any

from cputune.errors import CputuneError
from cputune.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

_color = "auto"
_verbosity = 0


def set_color(choice: str) -> None:
    """Remember ``--color``: auto, always or never."""
    global _color
    _color = choice


def verbosity() -> int:
    """How much is said: -1 errors alone (-q), 0 as usual, 1 and 2 more (-v, -vv)."""
    return _verbosity


def set_verbosity(level: int) -> None:
    """Remember how much is to be said, and let what cputune logs be heard from 1 on."""
    global _verbosity
    heard, _verbosity = _verbosity > 0, level
    if heard or level > 0:
        from cputune.cli._logged import hear_log  # logging takes a while to import

        hear_log(level)


def wants_color(stream: IO[str]) -> bool:
    """``--color`` beats NO_COLOR beats FORCE_COLOR beats whether the stream is a terminal."""
    if _color != "auto":
        return _color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def console(stream: IO[str] | None = None) -> Console:
    """A rich console on a stream (stdout where none is given).

    Plain text where colour is not wanted.
    """
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    color = wants_color(stream)
    return Console(
        file=stream,
        force_terminal=color or None,
        no_color=not color,
        width=_width(stream),
        _environ={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
    )


def terminal(stream: IO[str]) -> Console:
    """A rich console on a terminal that may change its size: its width is looked up each time."""
    from rich.console import Console

    known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    color = wants_color(stream)
    return Console(
        file=stream,
        force_terminal=True,
        no_color=not color,
        _environ=known,
        highlight=False,
        emoji=False,
        markup=False,
    )


def _width(stream: IO[str]) -> int:
    """Columns of the terminal, or as COLUMNS says; never too few to read."""
    said = os.environ.get("COLUMNS", "")
    width = int(said) if said.isascii() and said.isdigit() and len(said) < 4 else 0
    if not width and stream.isatty():
        with contextlib.suppress(OSError, ValueError):
            width = os.get_terminal_size(stream.fileno()).columns
    return max(width or 100, 40)


def tell(text: str) -> None:
    """A line on stderr, whatever is in its text; none with -q."""
    if _verbosity >= 0:
        sys.stderr.write(visible(text) + "\n")


def print_json(document: Any) -> None:
    """One document on stdout and nothing more."""
    sys.stdout.write(json_text(document, encoding=sys.stdout.encoding))


def json_text(document: Any, *, encoding: str | None = "utf-8") -> str:
    """The document as text that this encoding can carry: other characters are escaped.

    Variables that are no UTF-8 reach us as lone surrogates, which no encoding carries.
    """
    import json  # `cputune --help` does without

    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(document, indent=2) + "\n"
    return text


def print_traceback(error: BaseException) -> None:
    """The traceback on stderr, line by line: an error may quote what comes from outside."""
    import traceback

    for part in traceback.format_exception(error):
        for line in part.rstrip("\n").split("\n"):
            tell("  " + line)  # indented: no line of it passes for one of ours


def report_error(error: CputuneError, *, as_json: bool = False) -> int:
    """``error:`` and ``hint:`` on stderr; with ``--json`` a document on stdout too.

    Returns the exit code of the error.
    """
    if as_json:
        print_json(
            {
                "schema": "cputune.error/1",
                "error": {
                    "message": str(error),
                    "hint": error.hint,
                    **({"details": error.details} if error.details else {}),
                    "exit_code": error.exit_code,
                },
            }
        )
    red, yellow, plain = (
        ("\x1b[31m", "\x1b[33m", "\x1b[0m") if wants_color(sys.stderr) else ("", "", "")
    )
    sys.stderr.write(f"{red}error:{plain} {visible(str(error))}\n")
    for line in (error.details or "").splitlines():
        sys.stderr.write(f"  {visible(line)}\n")
    if error.hint:
        sys.stderr.write(f"{yellow}hint:{plain} {visible(error.hint)}\n")
    return error.exit_code

"""``cputune report``: a result as one page of HTML that needs no network.

It has the blocks of ``cputune show``; ``page.html.j2`` says how each kind looks. What no table of a
terminal shows is which intervals overlap: the page draws the speed of each plan as a bar with its
interval, its numbers in words beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from importlib.util import find_spec

from cputune import __version__
from cputune.errors import MissingPackageError
from cputune.host.interpreter import install_tuning
from cputune.report.show import ResultToShow, blocks
from cputune.report.writing import Block, Heading
from cputune.result import Result
from cputune.text import visible

MOST_ROWS = 30

Section = tuple[str, list[tuple[str, Block]]]
"""A heading, and the blocks below it, each with its kind."""


def page(result: Result, file: str = "cputune.json") -> str:
    """The whole page. ``file`` is where the result lies, for the commands to copy.

    Raises MissingPackageError without jinja2.
    """
    if find_spec("jinja2") is None:
        raise MissingPackageError(
            "the report needs jinja2, which is not installed", hint=install_tuning(stack=False)
        )
    import jinja2

    template = resources.files("cputune.report").joinpath("page.html.j2")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda said: visible(said) if type(said) is str else said,
    )
    shown = blocks(ResultToShow(result=result, file=file), most=MOST_ROWS, every=True)
    drawn = environment.from_string(template.read_text(encoding="utf-8"))
    text: str = drawn.render(result=result, sections=sections(shown), version=__version__)
    return text


def sections(shown: Iterable[Block]) -> list[Section]:
    """The blocks below their headings; what comes first has none."""
    found: list[Section] = [("", [])]
    for block in shown:
        if isinstance(block, Heading):
            found.append((block.words, []))
        else:
            found[-1][1].append((type(block).__name__, block))
    return found

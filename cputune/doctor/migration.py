"""What launches of older guides are today, each change with its reason and source.

Nothing is known here: which words are refused, and what is written instead, are the rows of
``stack.toml`` as the judges of ``--check-file`` read them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cputune.doctor.files.command import faulty_words, is_alone, parser_of, wrong_backend
from cputune.doctor.files.context import Context
from cputune.doctor.files.shell import TrainingCommand, value_of
from cputune.stack.uses import Fate, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """One change: ``now`` is "" where nothing takes its place; ``line`` counts from 1."""

    was: str
    now: str
    why: str
    source: str = ""
    line: int | None = None

    def describe(self) -> str:
        """``--no_cuda → --use_cpu: why (source)``."""
        source = f" ({self.source})" if self.source else ""
        return f"{self.was} → {self.now or 'nothing'}: {self.why}{source}"


ROUNDS = 3
"""``--xpu_backend ccl`` becomes ``--ddp_backend ccl``, and that ``--ddp_backend gloo``."""


def migrate_arguments(
    launch: TrainingCommand, context: Context
) -> tuple[tuple[str, ...], tuple[Migrated, ...]]:
    """The arguments of a training script as these versions take them, and what was changed.

    Flags that the script may parse by itself stay as they are.
    """
    words, found = launch.arguments, []
    for _ in range(ROUNDS):
        now = replace(launch, arguments=words)
        refused = [
            word
            for word, parser in faulty_words(now, context)
            if word.state is Fate.REFUSED and parser == "trainer"
        ]
        for word in refused:
            words, was, became = _exchanged(words, word)
            found.append(
                Migrated(was=was, now=became, why=_why(word), source=word.source, line=launch.line)
            )
    flag = next((f for f in BACKENDS if value_of(words, (f,)) is not None), None)
    if flag and is_alone(launch) and parser_of(flag, launch, context) == "trainer":
        word = Word(spelling=f"{flag} {value_of(words, (flag,))}", state=Fate.REFUSED, reader="")
        words, was, _ = _exchanged(words, word)
        why = "one rank speaks to nobody; transformers ends with a ValueError"
        found.append(Migrated(was=was, now="", why=why, source=wrong_backend.source))
    return words, tuple(found)


BACKENDS = ("--ddp_backend", "--xpu_backend")


def _why(word: Word) -> str:
    after = (word.instead or "").partition(", ")[2]
    return ", ".join(part for part in (f"refused by {word.reader}", word.why, after) if part)


def _exchanged(words: tuple[str, ...], word: Word) -> tuple[tuple[str, ...], str, str]:
    """The words with one spelling replaced; what stood there, and what stands there now."""
    flag, _, choice = word.spelling.partition(" ")
    instead = (word.instead or "nothing").partition(",")[0]
    kept: list[str] = []
    was = now = ""
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        if "--" + name[2:].replace("-", "_") != flag:
            kept.append(words[position])
            position += 1
            continue
        following = words[position + 1 : position + 2]
        apart = not equals and following and not following[0].startswith("-")
        value = following[0] if apart else value
        was = f"{name} {value}".rstrip()
        position += 2 if apart else 1
        if choice:
            new = instead.split() if instead != "nothing" else []
        else:
            new = [instead, *([value] if value else [])] if instead != "nothing" else []
        taken = {one.partition("=")[0] for one in (*words, *kept)}
        if new and new[0] != flag and new[0] in taken:
            new = []
        now = " ".join(new)
        kept += new
    return tuple(kept), was, now

"""What a file promises beside its plan, held against the ranks: variables, workload, interpreter.

Pure functions from records to evidence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from cputune.carrier.cleared import is_cleared
from cputune.inside.messages import RankState
from cputune.knobs import KNOBS
from cputune.ranks.launched import Rank
from cputune.verifier.interface import Expected
from cputune.verifier.records import Evidence

SHOWN_BY_KNOBS = frozenset(shown.what for knob in KNOBS for shown in knob.shown) | {"LD_PRELOAD"}
"""Variables that have checks of their own; of LD_PRELOAD counts what is mapped."""

CHANGES_A_PLAN = re.compile(
    r"(OMP|GOMP|TCMALLOC)_.*|KMP_(?!DUPLICATE_LIB_OK|INIT_AT_FORK).*|MALLOC_CONF|MKL_NUM_THREADS"
)
"""What no launch may add to its plan. scikit-learn sets the two KMP variables itself."""


def environment(promised: Mapping[str, str], ranks: Sequence[Rank]) -> tuple[Evidence, ...]:
    """Every promised variable as promised, and none beside them that would change the plan."""
    found = []
    for rank in ranks:
        seen = _state(rank).get("environment")
        if seen is None:
            continue
        added = {n for n in seen if is_cleared(n) and CHANGES_A_PLAN.fullmatch(n)} - set(promised)
        for name in sorted((set(promised) - SHOWN_BY_KNOBS) | added):
            found.append(
                Evidence(
                    what=name,
                    rank=rank.number,
                    expected=f"{name}={promised[name]}" if name in promised else f"no {name}",
                    seen=f"{name}={_as_promised(promised.get(name), seen[name])}"
                    if name in seen
                    else f"no {name}",
                )
            )
    return tuple(found)


def _as_promised(promised: str | None, seen: str) -> str:
    """Accelerate's launcher writes ``True`` where ``true`` was asked for, and reads both."""
    if promised in ("true", "false") and seen.lower() == promised:
        return promised
    return seen


def workload(expected: Expected, ranks: Sequence[Rank]) -> tuple[Evidence, ...]:
    """What each rank trains: the files and words of its command line, the length of a sample."""
    found: list[Evidence] = []
    for rank in ranks:
        state = _state(rank)
        length = state.get("sequence_length")
        if expected.sequence_length is not None and length is not None:
            found.append(
                Evidence(
                    what="tokens of a sample",
                    rank=rank.number,
                    expected=f"{expected.sequence_length} tokens",
                    seen=f"{length} tokens",
                )
            )
        if expected.words is not None and "words" in state:
            found += _words(rank.number, expected.words, state["words"])
    return tuple(found)


def _words(
    rank: int, promised: Sequence[str | None], seen: Sequence[tuple[str, str | None]]
) -> Iterator[Evidence]:
    """One row for the command line as a whole, or one for each word that is another."""
    wrong = [
        position
        for position, word in enumerate(promised[: len(seen)])
        if word is not None and word != _shown(word, seen[position])
    ]
    for position in wrong:
        file = str(promised[position]).startswith("file:")
        what = "the file" if file else "the word"
        yield Evidence(
            what=f"word {position} of the training command",
            rank=rank,
            expected=f"{what} that was emitted as word {position}",
            seen=f"another {what.removeprefix('the ')}",
        )
    counts = [f"{len(words)} words" for words in (promised, seen)]
    if not wrong:
        yield Evidence(what="training command", rank=rank, expected=counts[0], seen=counts[1])


def _shown(promised: str, seen: tuple[str, str | None]) -> str:
    return f"file:{seen[1]}" if promised.startswith("file:") else seen[0]


def interpreter(wanted: str | None, ranks: Sequence[Rank]) -> tuple[Evidence, ...]:
    """Which interpreter each rank ran in; ``wanted`` is a path, None where any will do."""
    found = []
    for rank in ranks:
        seen = _state(rank).get("executable")
        if seen is not None:
            same = wanted is None or _same_environment(wanted, seen)
            found.append(
                Evidence(
                    what="interpreter",
                    rank=rank.number,
                    expected=seen if same else wanted,
                    seen=seen,
                )
            )
    return tuple(found)


def _same_environment(one: str, other: str) -> bool:
    """An environment has its python under several names (torchrun's first line has another)."""
    return os.path.dirname(one) == os.path.dirname(other) and (
        os.path.realpath(one) == os.path.realpath(other)
    )


def _state(rank: Rank) -> RankState:
    return rank.state if rank.state is not None else {}

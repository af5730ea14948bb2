"""Which transformers was seen training beside which accelerate: ``pairs.json``, read by its minors.

``benchmarks/pairs.py`` makes the file by training every pair it can install; what it did not try is
*not tried*, which is never the same as fitting.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from packaging.version import Version

from cputune.stack.tables import Minor, Versions, load, minor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A pair that was trained with, beside ``torch``. ``error`` is how it ended, None where it ran.

    ``blames_pair``: each of the two ran beside others there, so that no other torch mends it.
    """

    transformers: Version
    accelerate: Version
    torch: Version
    date: str
    error: str | None
    blames_pair: bool

    def describe(self) -> str:
        """The trial in words, without its outcome."""
        return (
            f"transformers {self.transformers} beside accelerate {self.accelerate} and torch "
            f"{self.torch}, tried {self.date}"
        )


@cache
def pairs() -> dict[tuple[Minor, Minor], Tried]:
    """All that were tried, by the minor releases of transformers and accelerate."""
    text = resources.files("cputune.stack").joinpath("pairs.json").read_text(encoding="utf-8")
    document = json.loads(text)
    rows = [(t, a, n) for t, row in document["pairs"].items() for a, n in row.items()]
    ran = {version for *pair, failure in rows if failure < 0 for version in pair}
    failures = [next(iter(failure.values())) for failure in document["failures"]]
    found = {}
    for transformers, accelerate, failure in rows:
        tried = Tried(
            transformers=Version(transformers),
            accelerate=Version(accelerate),
            torch=Version(document["torch"]),
            date=document["date"],
            error=None if failure < 0 else failures[failure],
            blames_pair=transformers in ran and accelerate in ran,
        )
        found[minor(tried.transformers), minor(tried.accelerate)] = tried
    return found


def tried(versions: Versions) -> Tried | None:
    """The trial that tells of these versions; None where nobody tried.

    A failure tells of its own torch alone, unless the two are to blame.
    """
    if versions.transformers is None or versions.accelerate is None:
        return None
    found = pairs().get((minor(versions.transformers), minor(versions.accelerate)))
    if found is None or found.error is None or found.blames_pair:
        return found
    same = versions.torch is not None and minor(versions.torch) == minor(found.torch)
    return found if same else None


def was_seen_training(versions: Versions) -> bool:
    """Whether transformers and accelerate of these versions ran together, here or in an era."""
    found = tried(versions)
    if found is not None:
        return found.error is None
    pair = (versions.transformers, versions.accelerate)
    return any(
        pair == (era.versions["transformers"], era.versions["accelerate"]) for era in load().eras
    )

"""Which flags, configuration keys and variables a stack accepts, refuses or ignores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cputune.stack import spelling
from cputune.stack.tables import Feature, load
from cputune.stack.uses import LEAST_CCL_WORKERS, ipex_use
from cputune.stack.versions import Versions


class State(str, Enum):
    """What becomes of a word."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One spelling and what becomes of it. ``reader`` is the package that reads it."""

    spelling: str
    state: State
    reader: str
    why: str | None = None
    instead: str | None = None
    source: str = ""

    def describe(self) -> str:
        """``--no_cuda (write --use_cpu)``."""
        notes = [self.why] if self.why else []
        if self.instead:
            notes.append(f"instead: {self.instead}")
        return self.spelling + (f" ({'; '.join(notes)})" if notes else "")


def vocabulary(versions: Versions) -> tuple[Word, ...]:
    """Every word whose fate differs between versions, as this stack takes it."""
    found = [*_arguments(versions), *_keys(versions), *_variables(versions)]
    return tuple(sorted(found, key=lambda word: tuple(State).index(word.state)))


def word(spelling: str, versions: Versions) -> Word | None:
    """What becomes of this spelling; None where it is no word of ours, or nobody reads it."""
    return next((found for found in vocabulary(versions) if found.spelling == spelling), None)


def _arguments(v: Versions) -> list[Word]:
    library, version = load().transformers, v.transformers
    if version is None:
        return []
    reader = f"transformers {version}"
    found = []
    for argument in library.arguments:
        there = argument.covers(version)
        found.append(
            Word(
                spelling=f"--{argument.name}",
                state=State.ACCEPTED if there else State.REFUSED,
                reader=reader,
                instead=None if there else _flag(argument.instead(version)),
                source=argument.source,
            )
        )
        if argument.name == "use_ipex" and there:
            found[-1] = _use_ipex(v, argument, reader)
    option = "--ddp_backend" if spelling.takes(v, "ddp_backend") else "--xpu_backend"
    for backend in library.backends:
        found.append(
            Word(
                spelling=f"{option} {backend.name}",
                state=State.ACCEPTED if backend.covers(version) else State.REFUSED,
                reader=reader,
                source=backend.source,
            )
        )
        if backend.name == "ccl":
            found[-1] = _ccl(v, found[-1])
    fp16 = library.does("fp16-trains-in-fp32", version)
    if fp16 is not None:
        found.append(
            Word(
                spelling="--fp16",
                state=State.IGNORED,
                reader=reader,
                why="on a CPU it trains in fp32",
                instead="--bf16",
                source=fp16.source,
            )
        )
    return found


def _use_ipex(v: Versions, argument: Feature, reader: str) -> Word:
    use = ipex_use(v)
    state, why = {
        "absent": (State.REFUSED, "IPEX is not there"),
        "unfit": (State.REFUSED, "IPEX does not fit torch"),
        "ignored": (State.IGNORED, "neither Trainer nor accelerate calls IPEX"),
        "unknown": (State.ACCEPTED, use.reason),
    }.get(use.state, (State.ACCEPTED, f"{use.caller} calls ipex.optimize"))
    return Word(spelling="--use_ipex", state=state, reader=reader, why=why, source=argument.source)


def _ccl(v: Versions, plain: Word) -> Word:
    """``--ddp_backend ccl``, which accelerate has its own say about."""
    state, why = plain.state, "the word is gone" if plain.state is State.REFUSED else None
    if v.accelerate is not None and load().accelerate.does("no-ccl", v.accelerate):
        state, why = State.REFUSED, f"accelerate {v.accelerate} has no ccl"
    elif state is State.ACCEPTED:
        least = f"CCL_WORKER_COUNT of {LEAST_CCL_WORKERS} or more"
        why = f"with the bindings of this torch and {least}"
    return Word(
        spelling=plain.spelling,
        state=state,
        reader=plain.reader,
        why=why,
        instead=plain.spelling.replace("ccl", "gloo") if state is State.REFUSED else None,
        source="huggingface/accelerate#3883",
    )


def _keys(v: Versions) -> list[Word]:
    library, version = load().accelerate, v.accelerate
    if version is None:
        return []
    reader = f"accelerate {version}"
    found = [
        Word(
            spelling=f"{span.name}:",
            state=State.ACCEPTED if span.covers(version) else State.REFUSED,
            reader=reader,
            source=span.source,
        )
        for span in library.keys
        # What every release has known is no news.
        if span.first is not None and span.first >= (0, 19)
    ]
    if "mpirun_config" in library.keys_of(version):
        reads = library.does("reads-mpirun-ccl", version)
        found.append(
            Word(
                spelling="mpirun_config.mpirun_ccl:",
                state=State.ACCEPTED if reads else State.IGNORED,
                reader=reader,
                source="PyPI wheels, accelerate/utils/launch.py",
            )
        )
    return found


def _variables(v: Versions) -> list[Word]:
    library, version = load().accelerate, v.accelerate
    if version is None:
        return []
    found = []
    for name, behaviour in (("ACCELERATE_USE_IPEX", "no-ipex"), ("CCL_WORKER_COUNT", "no-ccl")):
        gone = library.does(behaviour, version)
        found.append(
            Word(
                spelling=name,
                state=State.IGNORED if gone else State.ACCEPTED,
                reader=f"accelerate {version}",
                source=gone.source if gone else "PyPI wheels, accelerate/state.py",
            )
        )
    return found


def _flag(instead: str | None) -> str | None:
    if instead is None or " " in instead or instead == "nothing":
        return instead
    return f"--{instead}"

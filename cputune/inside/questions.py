"""The questions about a batch: what changes if it is trained on in another way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cputune.inside.applying.trimming import cut, encodings_of, has_tail
from cputune.inside.as_ranks import AsRanks
from cputune.inside.cutting import UncutError, cut_into, rows_in
from cputune.inside.draws import SEED, Draws
from cputune.inside.later import at_step, later_steps
from cputune.inside.messages import ModelAnswer
from cputune.inside.nearness import ALIKE, ROUNDING, Turn, differ, distance, gradients_apart, norm
from cputune.inside.sources import Sources
from cputune.inside.turns import Trains, Turns

STATE = (
    "what a batch leaves in the model or its loss (a queue, a running mean) changes the next loss,"
    " and each rank would leave it of its own samples alone"
)

CALLS = "each batch changes what the next one gives, so their number in a step counts"

CHANCE = (
    "random numbers that are drawn once for a whole batch change its {}, and each rank would draw"
    " its own"
)

NOISE = (
    "random numbers are drawn between the gradient and the update (noise in the optimizer), and"
    " each rank would draw its own"
)

NOT_AGAIN = (
    "its loop did not train on the same batch when it was given once more: it leaves out some"
    " batches, or stops after a number of them"
)

ROWS = "its collator makes {} of {} samples, which cannot be divided"

# Other seeds, for a batch that draws random numbers once for all of its samples.
SEEDS = 5

# The batches of a question, each with a factor for the items of the step.
Asks: TypeAlias = Iterator[tuple[object, float]]


class Answers:
    """Reports the answers to the questions of one rank."""

    def __init__(self, say: Callable[[ModelAnswer], None]) -> None:
        self._say = say

    def compare(self, question: str, point: str, uncut: Turn | None, other: Turn | None) -> None:
        """Report loss and gradient of both, and the relative difference of the gradients."""
        if uncut is None or other is None:
            self.tell(question, point, reason=NOT_AGAIN)
            return
        if len(uncut.gradients) != len(other.gradients):
            self.tell(question, point, reason="it runs the backward pass another number of times")
            return
        self._say(
            {
                "event": "answer",
                "question": question,
                "point": point,
                "loss": [uncut.loss, other.loss],
                "gradient": [norm(uncut.gradients), norm(other.gradients)],
                "apart": gradients_apart(uncut, other),
            }
        )

    def tell(self, question: str, point: str, *, reason: str) -> None:
        """Report why a question has no answer; without a reason there is nothing to check."""
        self._say({"event": "answer", "question": question, "point": point, "why": reason})

    def end(self, updates: int, drawn: bool | None) -> None:
        """Report that this was all."""
        end: ModelAnswer = {"event": "answer", "question": "", "point": "", "updates": updates}
        if drawn is not None:
            end["drawn"] = drawn
        self._say(end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A batch that is asked about.

    Attributes:
        point: when, in words; number: the points so far.
        count: its rows.
        uncut: what it gives as it is.
        trainer: what computes its loss, if that is not the model; steps: of the whole training.
    """

    point: str
    number: int
    batch: Any
    count: int
    uncut: Turn
    trainer: object = None
    steps: int | None = None


class Questions:
    """Asks about the batches of one rank.

    ``of_samples``: draws, rare samples and later steps are asked about too.
    """

    def __init__(
        self, answers: Answers, turns: Turns, draws: Draws, sources: Sources, *, of_samples: bool
    ) -> None:
        self.rows = 1
        self._answers, self._turns, self._draws, self._sources = answers, turns, draws, sources
        self._of_samples = of_samples
        self._as_ranks = AsRanks(turns)
        self._following: Turn | None = None
        self._noise = ROUNDING

    def see_rows(self, count: int, samples: int | None) -> None:
        """Note how many rows of a batch each of its samples has; None: they are not known."""
        if samples and count % samples == 0:
            self.rows = count // samples

    def ask(self, question: str, asked: Asked) -> Asks:
        """The batches to train on for a question."""
        if question == "ranks":
            yield from self._ask_ranks(asked)
        elif question == "padding":
            yield from self._ask_padding(asked)
        else:
            other = yield from self._computed_otherwise(question, asked)
            self._answers.compare(question, asked.point, asked.uncut, other)

    def repeated(self, point: str, batch: Any, count: int, *, items: bool) -> Trains:
        """The batch as it is, twice. ``items``: its loss is passed the items of the whole step."""
        uncut, again = yield from self._twice(batch, count)
        if items and uncut is not None and self._as_ranks.weighs_items is None:
            twice = yield from self._turns.of([batch], count, factor=2.0)
            differs = twice is not None and differ(uncut.loss, twice.loss) > 0.1
            self._as_ranks.weighs_items = differs
        self._answers.compare("repeats", point, uncut, again)
        return uncut

    def _twice(
        self, batch: Any, count: int
    ) -> Generator[tuple[object, float], None, list[Turn | None]]:
        """The batch twice. If the first turn leaves a state that counts, each from the same
        start.
        """
        uncut, following = yield from self._turns.in_a_row((batch, count), (batch, count))
        self._following = None
        if uncut is None or following is None or distance(uncut, following) <= ROUNDING:
            return [uncut, following]
        again = yield from self._turns.of([batch], count)
        self._following = following
        self._noise = ROUNDING if again is None else ROUNDING + 10 * distance(uncut, again)
        return [uncut, again]

    def _ask_ranks(self, asked: Asked) -> Asks:
        """The loss of the batch from those of its parts, and of a batch with rare samples."""
        if self._of_samples:
            yield from self._ask_draws(asked)
        yield from self._ask_parts("ranks", asked)
        if self._of_samples and asked.number == 2:
            yield from self._ask_later(asked)
        rare_batch = None
        if self._of_samples and asked.number <= 2:
            rare_batch = self._sources.of_rare_samples()
        if rare_batch is not None:
            rare, size = rare_batch
            count = rows_in(rare)
            self.see_rows(count, size)
            uncut = yield from self._turns.of([rare], count)
            if uncut is not None:
                asked = replace(asked, batch=rare, count=count, uncut=uncut)
                yield from self._ask_parts("rare", asked)

    def _ask_later(self, asked: Asked) -> Asks:
        """The parts of the batch once more if its loss changes later."""
        for step in later_steps(asked.trainer, asked.steps):
            with at_step(asked.trainer, step):
                later = yield from self._turns.of([asked.batch], asked.count)
                if later is not None and distance(asked.uncut, later) > ALIKE:
                    point = f"as after {step} updates"
                    yield from self._ask_parts("ranks", replace(asked, point=point, uncut=later))

    def _ask_draws(self, asked: Asked) -> Asks:
        """Whether draws for a whole batch change what it trains."""
        point, uncut = asked.point, asked.uncut
        if self._draws.in_updates:
            self._answers.tell("draws", point, reason=NOISE)
            return
        for number in range(SEEDS if self._draws.once else 0):
            seed = SEED + 1000 * (number + 1)
            other = yield from self._turns.of([asked.batch], asked.count, seed=seed)
            if other is None:
                return
            if not distance(uncut, other) <= ALIKE:
                figures = f"{uncut.loss:.6g}", f"{other.loss:.6g}"
                what = f"loss ({figures[0]}, and {figures[1]})"
                if figures[0] == figures[1]:
                    what = f"gradient (by {gradients_apart(uncut, other):.2g} of its norm)"
                self._answers.tell("draws", point, reason=CHANCE.format(what))
                return
        self._answers.tell("draws", point, reason="")

    def _ask_parts(self, question: str, asked: Asked) -> Asks:
        """The loss of the batch from those of its parts, as the framework weighs them.

        If a sample has several rows, the better one of two cuttings is reported.
        """
        point, count = asked.point, asked.count
        rows = 1
        if count % self.rows == 0:
            rows = self.rows
        samples = count // rows
        parts = next((n for n in range(2, samples + 1) if samples % n == 0), 1)
        made_of = self._sources.size or 1
        if parts == 1 or (question == "ranks" and count % made_of):
            rows_text = "one row" if count == 1 else f"{count} rows"
            reason = ROWS.format(rows_text, made_of) if count % made_of else ""
            self._answers.tell(question, point, reason=reason)
            return
        try:
            cuttings = [cut_into(asked.batch, samples, parts, rows)]
            shorter = cuttings[0] if has_tail(asked.batch) else [cut(part) for part in cuttings[0]]
            if rows > 1:  # a loss that takes the rows the other way gives something else
                # A rank collates samples of several rows itself, and pads them alone.
                cuttings = [shorter, cut_into(asked.batch, samples, samples, rows, in_turn=True)]
        except UncutError as error:
            reason = f"the batch cannot be cut into samples: {error}"
            self._answers.tell(question, point, reason=reason)
            return
        each = count // parts
        if self._following is not None and question == "ranks":
            self._answers.tell("accumulation", point, reason=CALLS)
            first, whole = (cuttings[0][0], each), (asked.batch, count)
            _, after_part = yield from self._turns.in_a_row(first, whole)
            if after_part is None or distance(after_part, self._following) > self._noise:
                self._answers.tell("ranks", point, reason=STATE)
                return
        closest = yield from self._as_ranks.closest(cuttings, count, asked.uncut)
        self._answers.compare(question, point, asked.uncut, closest)
        is_padded = shorter is not cuttings[0] and any(map(has_tail, cuttings[0]))
        if question == "ranks" and is_padded and self._following is None:
            # Parts that are accumulated are collated one by one, and padded alone.
            alone = yield from self._as_ranks.together(shorter, each, asked.uncut)
            self._answers.compare("accumulation", point, asked.uncut, alone)

    def _ask_padding(self, asked: Asked) -> Asks:
        """The batch without the columns that are padding in all of its samples."""
        batch = asked.batch
        if not any(True for _ in encodings_of(batch)) or not has_tail(batch, 1):
            self._answers.tell("padding", asked.point, reason="")
            return
        # To the last column that is used: what looks beyond a token (a convolution) sees it.
        shorter = yield from self._turns.of([cut(batch, 1)], asked.count)
        if shorter is None:
            shorter = yield from self._turns.of([cut(batch)], asked.count)
        self._answers.compare("padding", asked.point, asked.uncut, shorter)

    def _computed_otherwise(self, question: str, asked: Asked) -> Trains:
        """The batch with another number of threads, or in bf16."""
        torch = sys.modules["torch"]
        if question == "precision":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return (yield from self._turns.of([asked.batch], asked.count))
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if threads > 1 else 2)
        try:
            return (yield from self._turns.of([asked.batch], asked.count))
        finally:
            torch.set_num_threads(threads)

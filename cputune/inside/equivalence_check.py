"""Checks with a model what a plan would change in its training, in a process that is not measured.

At some points of the current launch (its first step; after some updates, with all weights moved a
little, so that a gate at zero hides nothing; later on) the current batch is trained on again: as it
is, in parts, without its padding, with other threads, in bf16. Dropout is off, and other draws are
the same for each sample (``draws``). Losses and gradients are reported, and judged by
``cputune.plans.equivalence``. Nothing is updated meanwhile: gradients, and all state of model and
loss, are restored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cputune.inside import ASK_VARIABLE
from cputune.inside.asked_points import Points
from cputune.inside.cutting import rows_in
from cputune.inside.draws import Draws
from cputune.inside.messages import ModelAnswer
from cputune.inside.nearness import Turn
from cputune.inside.questions import Answers, Asked, Questions
from cputune.inside.sources import Sources
from cputune.inside.turns import Turns

THAWED = (
    "{} parameters are trained that were frozen at the first step, and DistributedDataParallel"
    " averages those alone that were trained when it was made"
)

QUESTIONS = ("repeats", "samples", "ranks", "padding", "threads", "precision")


class Asker:
    """Asks the model of one rank when the training has come to a point.

    Attributes:
        asks: the questions of this process.
        draws: draws alike meanwhile.
        sources: what the batches are made of.
        turns: what is trained on for a question.
    """

    def __init__(self, say: Callable[[ModelAnswer], None]) -> None:
        named = os.environ.get(ASK_VARIABLE, "").split(",")
        self.asks = tuple(question for question in QUESTIONS if question in named)
        self.draws = Draws()
        self.sources = Sources(self.draws)
        self.turns = Turns(self.draws)
        looks = self.looks_at_samples
        self._answers = Answers(say)
        self._questions = Questions(
            self._answers, self.turns, self.draws, self.sources, of_samples=looks
        )
        self._points = Points(of_script=looks)
        self._optimizers: list[Any] = []
        self._trained_first: set[int] = set()
        self._finished = False

    @property
    def looks_at_samples(self) -> bool:
        """Whether this process has to know what its batches are made of."""
        return "samples" in self.asks

    def saw(self, optimizer: object) -> None:
        """Note an optimizer that steps: its parameters are those that train."""
        if self.asks and not any(noted is optimizer for noted in self._optimizers):
            self._optimizers.append(optimizer)

    def due(self, steps: int) -> bool:
        """Whether the training has come to a point, after this number of steps."""
        if not self.asks or self.turns.are_on:
            return False
        due = self._points.due(steps)
        if self._points.are_over:
            self.finish()
        return due

    def finish(self) -> None:
        """Report that this was all, once."""
        if self.asks and not self._finished:
            self._finished = self._points.are_over = True
            self._answers.end(self._points.updates, self.sources.drawn)

    def begin_pass(self) -> None:
        """A new pass over the data may begin a new stage of training."""
        if not self.turns.are_on:
            self._points.begin_pass()

    def batches(
        self,
        batch: object,
        models: Sequence[Any],
        *,
        beside: object = None,
        items: bool = False,
        size: int | None = None,
        steps: int | None = None,
    ) -> Iterator[tuple[object, float]]:
        """The batches to train on for each question, and a factor for the step's items.

        The state of ``models`` and of ``beside``, which computes the loss, is restored after each.
        ``items``: the framework passes a loss the items of the whole step. ``size``: the samples of
        a batch, if the loader reports it. ``steps``: of the whole training.
        """
        self._points.begin()
        point, number = self._points.name, self._points.number
        parameters = self._trained_parameters(models)
        with self.turns.apart(parameters, self._optimizers, *models, beside):
            count = rows_in(batch)
            self._questions.see_rows(count, size)
            # What a draw makes of one sample alone is seen if the others have other draws.
            self.turns.is_spread = self._questions.rows == 1 and number % 2 == 0
            if self.looks_at_samples:
                self._ask_samples(point, models)
            if number > 1:
                self._move_weights(point)
            uncut: Turn | None = None
            for question in self.asks:
                if not self._points.has_time:
                    break
                if question == "samples":
                    continue
                self._answers.tell(question, point, reason="it failed during the check")
                if question == "repeats":
                    uncut = yield from self._questions.repeated(point, batch, count, items=items)
                elif uncut is not None:
                    asked = Asked(
                        point=point,
                        number=number,
                        batch=batch,
                        count=count,
                        uncut=uncut,
                        trainer=beside,
                        steps=steps,
                    )
                    yield from self._questions.ask(question, asked)
        self._points.end()
        if self._points.are_over:
            self.finish()

    def _ask_samples(self, point: str, models: Sequence[Any]) -> None:
        """What is trained, and what the batches are made of."""
        trained = {id(parameter) for parameter in _trainable(models)}
        self._trained_first = self._trained_first or trained
        thawed = len(trained - self._trained_first)
        self._answers.tell("parameters", point, reason=THAWED.format(thawed) if thawed else "")
        for question, reason in self.sources.ask():
            self._answers.tell(question, point, reason=reason)

    def _move_weights(self, point: str) -> None:
        """Move all weights a little, and ask whether the batches change with them."""
        before = self.sources.figure()
        self.turns.move_weights()
        if before is not None:
            self._answers.tell("weights", point, reason=self.sources.depends_on_weights(before))

    def _trained_parameters(self, models: Sequence[Any]) -> list[Any]:
        parameters = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                parameters += group["params"]
        if not parameters:
            parameters = _trainable(models)
        return list({id(tensor): tensor for tensor in parameters}.values())


def _trainable(models: Sequence[Any]) -> list[Any]:
    """The parameters of these models that need gradients."""
    parameters = []
    for model in models:
        parameters += [one for one in model.parameters() if one.requires_grad]
    return parameters

"""``cputune prove``: whether each knob trains the same as the command that was typed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from cputune.cli import completing
from cputune.cli.inputs import choose_python, facts_of, launched, python_option
from cputune.cli.option_defaults import ConfiguredCommand, json_option, script_of
from cputune.cli.output import console, print_json, print_line
from cputune.cli.signals import stop_if_interrupted
from cputune.errors import CannotError, UsageError
from cputune.plans.training_command import require_trainable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cputune.plans.equivalence import Deviation
    from cputune.report.writing import Block
    from cputune.tuner.knob_proofs import Proof


@click.command(
    name="prove",
    cls=ConfiguredCommand,
    takes_script=True,
    options_metavar="[OPTIONS] [-- SCRIPT ARGS...]",
)
@click.option(
    "--recipe",
    metavar="NAME",
    help="Check a recipe instead of a script.",
    shell_complete=completing.recipes,
)
@click.option(
    "--max-time",
    metavar="TIME",
    help="Time limit: 90s, 10m. Default: none.",
    shell_complete=completing.nothing,
)
@python_option
@click.option("--share-machine", is_flag=True, help="Run even while another process measures here.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    recipe: str | None,
    max_time: str | None,
    python: str | None,
    share_machine: bool,
    json: bool,
) -> None:
    """Check which knobs keep the training of your command the same, one by one.

    The command is started as typed. At its first step and after some updates, loss and gradient of
    its batches are compared with those of their parts, without padding, with other threads and in
    bf16. Data set and collator are examined. Then each knob is started for a few steps. The
    samples, learning rates, loss and gradient of its ranks are compared with those of your command.
    With another number of ranks the whole script is run, shortened, and the weights at its end are
    compared too. No speed is measured.

    Exits with 0, or with 1 if two starts of the command differ.

    \b
    cputune prove -- python train.py --epochs 3
    cputune prove --recipe bert-mini --json
    """
    from cputune.host.locks import measuring_lock
    from cputune.records.options import seconds_of
    from cputune.records.steps import TimeUp, TrialError
    from cputune.report.writing import print_blocks
    from cputune.text.documents import plain
    from cputune.tuner.events import waiting_for
    from cputune.tuner.knob_proofs import prove

    script = script_of(ctx)
    if script and recipe is not None:
        raise UsageError("give a recipe or a script, not both", hint="cputune prove -- train.py")
    trains = choose_python(python, script or ())
    job = launched(None, script or None, None, None, recipe=recipe, python=trains)
    if script:
        require_trainable(job.argv, python=trains)
    most = None if max_time is None else seconds_of(max_time)

    def note(text: str) -> None:
        stop_if_interrupted()
        print_line(f"… {text}")

    try:
        alone = measuring_lock(lambda owner: print_line(waiting_for(owner)))
        with nullcontext() if share_machine else alone:
            proof = prove(
                job,
                facts_of(python=trains),
                max_time_seconds=most,
                on_note=note,
                on_proven=lambda proven: print_line(f"{proven.knob}: {proven.verdict}"),
                on_wait=stop_if_interrupted,
            )
    except TrialError as error:
        raise CannotError(f"the command as typed does not train: {error}") from error
    except TimeUp as error:
        problem = f"the time limit was reached {error}".rstrip()
        raise CannotError(problem, hint="raise the limit: --max-time 5m") from error
    if json:
        print_json({"schema": "cputune.proof/1", **plain(proof)})
    else:
        print_blocks(blocks(proof), console())
    ctx.exit(1 if proof.model_answers.unlike else 0)


def _decisive_answers(answers: Sequence[Deviation]) -> list[Deviation]:
    chosen: dict[str, Deviation] = {}
    for answer in answers:
        earlier = chosen.setdefault(answer.question, answer)
        larger = (answer.largest or 0.0) > (earlier.largest or 0.0)
        if not earlier.why and (answer.why or larger):
            chosen[answer.question] = answer
    return [
        answer
        for answer in chosen.values()
        if answer.apart is not None or answer.why or answer.question in ("ranks", "padding")
    ]


def blocks(proof: Proof) -> Iterator[Block]:
    """The answers of the model, and a row for each knob."""
    from cputune.report.writing import Heading, Lines, Rows
    from cputune.text.plain import figure

    equivalence = proof.model_answers
    if equivalence.unlike:
        warning = f"the command does not repeat itself: {equivalence.unlike}"
        yield Lines((("warning", warning), ("", "so only knobs that keep all numbers are tried")))
    rows = []
    for answer in _decisive_answers(equivalence.answers):
        losses = [figure(loss, 6) for loss in answer.loss] or ["–", "–"]
        if answer.apart is None:
            apart = answer.why or "nothing to compare"
        else:
            apart = f"{answer.apart:.1e}"
        rows.append((answer.question, answer.point, *losses, apart))
    yield Heading("What its model computes for its batches")
    yield Rows(
        headings=("question", "when", "loss", "otherwise", "gradients apart"),
        right=frozenset(("loss", "otherwise", "gradients apart")),
        rows=tuple(rows),
    )
    rows = []
    different = []
    for number, knob in enumerate(proof.knobs):
        deviation = "–"
        if knob.deviation is not None:
            deviation = f"{knob.deviation:.1e}"
        if knob.verdict == "not the same":
            different.append(number)
        rows.append((knob.knob, knob.verdict, deviation, knob.why))
    yield Heading("Each knob by itself")
    yield Rows(
        headings=("knob", "trains", "largest deviation", "what agrees, or does not"),
        right=frozenset(("largest deviation",)),
        rows=tuple(rows),
        strong=frozenset(different),
    )
    yield Lines((("", limit(proof)),))


def limit(proof: Proof) -> str:
    """The sentence on what "the same" means."""
    from cputune.inside.first_steps import LOOKED_AT

    updates = proof.model_answers.updates
    checked = ""
    if updates is not None:
        checked = f", and its batches and model up to update {updates}"
    return (
        f"“the same” means: the first {LOOKED_AT} updates were compared{checked}. Later changes by "
        "the script are found only by the comparison of ranks in an emitted launch."
    )

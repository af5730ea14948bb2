"""The training command of a launch, and when there is none that keeps what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from cputune.carrier.command import Carried, lost_without_force, trains_by_arguments
from cputune.emitters import header
from cputune.emitters.format import Beside, EmittedFile, Output, Secret, Word
from cputune.emitters.words import refuse_unprintable
from cputune.errors import UsageError
from cputune.inside import (
    carry_script,
    lightning_script,
    padding_script,
    recipe_script,
    torch_script,
)
from cputune.inside.state import digest
from cputune.knobs import plan_in_torch
from cputune.plan import Plan
from cputune.result import Result
from cputune.stack import Versions, backend_flags, ipex_use, why_too_few_ccl_workers
from cputune.workload import Workload

RANK_SCRIPT = "rank.py"
TRAIN_SCRIPT, RECIPE_FILE, CARRY_SCRIPT = "train.py", "recipe.json", "carry.py"


def training_command(
    workload: Workload, way: Carried, *, carrier: bool = True
) -> tuple[tuple[Word, ...], tuple[str, ...]]:
    """The words of the training command, and what is to be said about them."""
    if workload.recipe is not None:
        script: tuple[Word, ...] = (
            Beside(TRAIN_SCRIPT),
            Beside(RECIPE_FILE),
            "--output_dir",
            Output("out"),
        )
        if carrier and way.force is not None:
            script = (Beside(CARRY_SCRIPT), way.force.to_json(), *script)
        return (*script, *way.flags), ()
    for word in workload.argv:
        refuse_unprintable(word)
    first = workload.argv[0]
    if first.startswith("-") and first != "-m":
        raise UsageError(
            f"python would take the script {first!r} for an option of its own",
            hint=f"write ./{first}",
        )
    known = workload.framework is not None or workload.parses_arguments is not None
    words = (*as_typed(workload), *way.flags)
    if carrier and way.carry is not None:
        words = (Beside(CARRY_SCRIPT), way.carry, *words)
    if carrier and way.sets_objects:
        return words, (
            *_secret_notes(workload),
            f"{workload.name} {'takes' if known else 'was not run yet: it may take'} no flags of "
            f"a plan, so {CARRY_SCRIPT} runs it, and sets batch, precision and backend in the "
            "script's own objects.",
        )
    notes = (
        ()
        if known or not way.flags
        else (f"{workload.name} was not run yet: that it takes the flags of a plan is not known.",)
    )
    return words, (*_secret_notes(workload), *notes)


def as_typed(workload: Workload) -> tuple[Word, ...]:
    """The script with its arguments, as they were typed."""
    secrets = ((word, workload.secret_of(word)) for word in workload.argv)
    return tuple(word if secret is None else Secret(*secret) for word, secret in secrets)


def _secret_notes(workload: Workload) -> tuple[str, ...]:
    """What must be set where the job is launched."""
    if not workload.secrets:
        return ()
    names = ", ".join(workload.secrets)
    return (f"A secret was left out: the launch reads it from {names}, which must be set there.",)


def promised_words(workload: Workload, command: tuple[Word, ...]) -> list[str | None]:
    """The command line of a rank as digests (``cputune.inside.state``), the script first.

    ``file:`` stands before the digest of what a file of the artefact holds. None is any
    word: the user's own script by whatever path, a place for output, a secret.
    """
    texts = {file.name: file.text for file in companions(workload, command, ())}
    if Beside(CARRY_SCRIPT) in command:
        command = command[2:]  # carry.py takes itself and its first word away
    if workload.recipe is None:
        command = command[len(workload.program) :]
    said: list[str | None] = [] if workload.recipe is not None else [None]
    for word in command:
        if isinstance(word, Beside):
            said.append("file:" + digest(texts[word.name].encode()))
        else:
            said.append(digest(word.encode()) if isinstance(word, str) else None)
    return said


def rank_script() -> Path:
    """What numbers and binds one rank; emitted beside launches as ``rank.py``."""
    return Path(__file__).with_name("_rank.py")


def companions(
    workload: Workload, command: tuple[Word, ...], said: tuple[str, ...]
) -> tuple[EmittedFile, ...]:
    """rank.py, and what the command needs: carry.py and its files, train.py and recipe.json."""
    files = [_program(RANK_SCRIPT, rank_script(), said)]
    if Beside(CARRY_SCRIPT) in command:
        files.append(_program(CARRY_SCRIPT, carry_script(), said))
        plan = str(command[1])
        settings = json.loads(plan).get("torch", {})
        beside = [torch_script()] if settings.keys() - {"padding"} else []
        if "padding" in settings:
            beside.append(padding_script())
        objects = '"world_size":' in plan and '"by_flags":' not in plan
        if objects and workload.framework in (None, "lightning"):
            beside.append(lightning_script())
        files += [EmittedFile(name=f.name, text=f.read_text(encoding="utf-8")) for f in beside]
    if workload.recipe is not None:
        recipe = json.dumps(workload.recipe.to_json(), indent=2, ensure_ascii=False) + "\n"
        files += [
            EmittedFile(name=TRAIN_SCRIPT, text=recipe_script().read_text(encoding="utf-8")),
            EmittedFile(name=RECIPE_FILE, text=recipe),
        ]
    return tuple(files)


def _program(name: str, source: Path, said: tuple[str, ...]) -> EmittedFile:
    """A program of ours, with what was measured in a comment at its head."""
    first, _, rest = source.read_text(encoding="utf-8").partition("\n")
    return EmittedFile(name=name, text=f"{first}\n{header.comment(said)}{rest}", executable=True)


def refuse_impossible(plan: Plan, versions: Versions) -> None:
    """Raise UsageError for what these versions cannot do, whoever asks them."""
    why = None
    if plan.precision == "fp16":
        why = "fp16: on a CPU, transformers and accelerate would train in fp32 without a word"
    if plan.world_size > 1 and plan.backend != "gloo" and not backend_flags(versions, plan.backend):
        why = f"{plan.backend}: they cannot be told to use it"
    elif plan.world_size > 1 and plan.backend == "ccl":
        few = why_too_few_ccl_workers(plan.ccl_workers)
        why = few and f"ccl: {few}"
    if plan.ipex and not ipex_use(versions).possible:
        why = f"IPEX: {ipex_use(versions).reason}"
    if why is not None:
        raise UsageError(
            f"these versions ({versions.describe()}) cannot train with {why}",
            hint="tune with the versions that the job has",
        )


def refuse_lost(workload: Workload, plan: Plan, way: Carried, result: Result | None) -> None:
    """Raise UsageError where a launch without carry.py would not be what was measured."""
    batch_known = workload.recipe is not None or plan.world_size == 1
    batch_known |= workload.samples_per_rank(plan.world_size) is not None
    today = None
    if result is not None and workload.framework is not None and result.baseline.plan.as_found:
        today = result.baseline.plan
    lost = list(lost_without_force(workload, plan, today))
    if not way.sets_objects:  # the flags carry all but a batch that is not known
        lost = [] if batch_known else lost[:1]
    in_torch = plan_in_torch(plan, by_arguments=trains_by_arguments(workload))
    lost += [f"{name}: torch's own in place of {value}" for name, value in in_torch.items()]
    if lost:
        raise UsageError(
            f"no flag of {workload.name} is known to carry the plan; without {CARRY_SCRIPT} its "
            f"launch would have another {'; another '.join(lost)}",
            hint="leave out --no-carrier, or tune this script",
        )


def refuse_unchosen_batch(workload: Workload, plan: Plan, way: Carried) -> None:
    """Raise UsageError where each of the ranks of several nodes would take the script's own batch.

    Neither a flag nor carry.py divides it then, so that the global batch would be one that
    nobody has chosen.
    """
    owned = workload.framework == "pytorch"
    chosen = workload.batch_per_rank is not None or way.sets_objects
    if plan.nodes == 1 or chosen or (workload.global_batch_size is not None and not owned):
        return
    own = workload.global_batch_size
    told = f", {plan.world_size} × {own} = {plan.world_size * own} samples" if own else ""
    raise UsageError(
        f"each of {plan.world_size} ranks on {plan.nodes} nodes would take the batch that "
        f"{workload.name} has by itself{told}: a global batch that nobody has chosen",
        hint="change the batch in the script, and say what each rank takes: --batch-per-rank N"
        if owned
        else "--global-batch-size N divides N samples over the ranks, --batch-per-rank N gives "
        "each of them N",
    )

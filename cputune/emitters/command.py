"""The training command of a launch, and what is refused because it would not train as measured."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from itertools import chain

from cputune.doctor.checkfile import judge_document
from cputune.doctor.files.context import Context
from cputune.doctor.files.judge import judge_everywhere, one_process
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.files.yaml_spans import Document
from cputune.doctor.finding import Finding, Severity, by_severity
from cputune.emitters.assembled import apply_plan_file
from cputune.emitters.checked_words import Argument, VariableName
from cputune.emitters.format import Beside, EmittedFile, LaunchJob, Output, Secret, Word
from cputune.emitters.turned_off import refused_unneeded, turned_off
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.host.files import exists
from cputune.inside.applying.force import Force
from cputune.inside.applying.parts import needed
from cputune.launch.located_words import without_options
from cputune.launch.script import Script, is_example
from cputune.plans.delivery.delivery import Delivery
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload, left_out
from cputune.stack import Versions, backend_flags, ipex_use, why_too_few_ccl_workers
from cputune.text.documents import packaged_text

RANK_SCRIPT = "rank.py"
PLAN_FILE, APPLY = "plan.json", "cputune.apply"
TRAIN_SCRIPT, RECIPE_FILE, APPLY_SCRIPT = "train.py", "recipe.json", "apply_plan.py"


def training_command(
    workload: Workload, delivery: Delivery, context: Context
) -> tuple[tuple[Word, ...], tuple[str, ...]]:
    """The words of the training command, and what is to be said about them.

    ``context``: the machines and packages that run it.
    """
    if workload.recipe is not None:
        script: tuple[Word, ...] = (
            Beside(TRAIN_SCRIPT),
            Beside(RECIPE_FILE),
            Argument("--output_dir"),
            Output(Argument("out")),
        )
        return (*script, *map(Argument, delivery.flags)), ()
    first = workload.argv[0]
    if first.startswith("-") and first != "-m":
        raise UsageError(
            f"python would read the script name {first!r} as an option",
            hint=f"write ./{first}",
        )
    refused = refused_unneeded(workload, delivery, context)
    accepted = replace(workload, argv=without_options(workload.argv, refused))
    command = (*as_typed(accepted), *map(Argument, delivery.flags))
    notes = turned_off(workload, delivery, context.facts, refused)
    if workload.secrets:
        notes.insert(0, left_out(workload.secrets))
    reader_known = workload.framework is not None or workload.parses_arguments is not None
    if delivery.sets_objects:
        takes = "takes" if reader_known else "was not run yet: it may take"
        notes.append(
            f"{workload.name} {takes} no flags of a plan: batch, precision and backend are "
            f"{SET_INSIDE}."
        )
    return command, tuple(notes)


def as_typed(workload: Workload) -> tuple[Word, ...]:
    """The script with its arguments, as they were typed; what names an output is known as one."""
    command: list[Word] = []
    before = ""
    for word in map(Argument, workload.argv):
        secret = workload.secret_of(word)
        name, equals, value = word.partition("=")
        if secret is not None:
            command.append(Secret(Argument(secret[0]), VariableName(secret[1])))
        elif flag_of(before) in WRITTEN and not word.startswith("-"):
            command.append(Output(word))
        elif flag_of(name) in WRITTEN and equals:
            command.append(Output(Argument(value), before=Argument(name + equals)))
        else:
            command.append(word)
        before = word
    return tuple(command)


def flag_of(word: str) -> str:
    """A flag as TrainingArguments spell it: ``--output-dir`` is ``--output_dir``."""
    return "--" + word[2:].replace("-", "_") if word.startswith("--") else ""


# Flags whose value is a folder that a training writes to.
WRITTEN = (
    *("--output_dir", "--logging_dir", "--save_dir", "--checkpoint_dir", "--default_root_dir"),
    "--overwrite_output_path",
)
# Flags whose value may be a path that a training reads.
READ = (
    *("--train_file", "--validation_file", "--test_file", "--data_dir", "--train_dir"),
    *("--validation_dir", "--dataset_dir", "--model_name_or_path", "--tokenizer_name"),
    *("--config_name", "--resume_from_checkpoint", "--dataset_name", "--cache_dir"),
)


def with_parser(workload: Workload, host: Host | None) -> Workload:
    """A script that was never run takes the flags of TrainingArguments if its text parses them.

    One that makes them itself takes none. A script whose text names no library that trains has its
    own loop, with its own precision, batch and ranks.
    """
    if workload.recipe is not None or workload.framework or workload.parses_arguments is not None:
        return workload
    with contextlib.suppress(OSError, ValueError):
        script = Script(text=(host or Host()).read_text(workload.argv[0]))
        if script.parses_arguments:
            return replace(workload, parses_arguments=True)
        if script.has_own_loop:
            return replace(workload, framework="pytorch")
    return workload


def parser_of(workload: Workload) -> str | None:
    """What reads the flags of the script, if a trial has shown it."""
    if workload.recipe is not None or workload.takes_flags:
        return "trainer"
    if workload.parses_arguments is not None:
        return "its own"
    # In a pod the script is started by our own programs, and cannot be read.
    script = workload.argv[0] if workload.argv else ""
    return "trainer" if is_example(script) and not exists(script) else None


SET_INSIDE = "set in the script's own objects"


def applied(job: LaunchJob) -> tuple[Word, ...]:
    """The words before the training command that have it run with what is set inside.

    None are needed if nothing is, and by several ranks that ``cputune.apply`` starts already.
    """
    if (
        job.force is None
        or not needed(job.force)
        or (job.plan.world_size > 1 and not job.self_contained)
    ):
        return ()
    if job.self_contained:
        return (Beside(APPLY_SCRIPT),)
    return (Argument("-m"), Argument(APPLY), Beside(PLAN_FILE), Argument("--"))


def of_ranks(job: LaunchJob) -> tuple[str, ...]:
    """How rank.py runs the training of one rank: its options, beside those of the launcher."""
    options: tuple[str, ...] = () if job.inside.guard else ("--compare", "no")
    if draws_by_itself(job):
        options += ("--draw", "apart")
    return options


def draws_by_itself(job: LaunchJob) -> bool:
    """Whether ranks draw apart, and no part that sets the script's objects sees to it."""
    return job.inside.draws_apart and "apart" in (job.force or NOTHING).without


# What a plan has that sets nothing inside the process.
NOTHING = Force(without=("apart",))


def companions(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The files next to a launch: rank.py, apply_plan.py, train.py and recipe.json, as needed."""
    files = []
    if job.self_contained and job.plan.world_size > 1:
        text = packaged_text("cputune.inside", "rank.py")
        files.append(EmittedFile(name=RANK_SCRIPT, text=text, executable=True))
    if job.force is not None and Beside(APPLY_SCRIPT) in applied(job):
        text = apply_plan_file(job.force)
        files.append(EmittedFile(name=APPLY_SCRIPT, text=text, executable=True))
    return (*files, *_recipe_files(job.workload))


def standing_alone(job: LaunchJob) -> LaunchJob:
    """The job with a copy of what it needs, for machines on which cputune need not be installed."""
    if job.self_contained:
        return job
    copied = replace(job, self_contained=True)
    return replace(copied, companions=companions(copied))


def _recipe_files(workload: Workload) -> tuple[EmittedFile, ...]:
    if workload.recipe is None:
        return ()
    recipe = json.dumps(workload.recipe.to_json(), indent=2, ensure_ascii=False) + "\n"
    script = packaged_text("cputune.inside", "train_recipe.py")
    return (
        EmittedFile(name=TRAIN_SCRIPT, text=script),
        EmittedFile(name=RECIPE_FILE, text=recipe),
    )


def refuse_impossible(plan: Plan, versions: Versions) -> None:
    """Raise UsageError for what these versions, or LD_PRELOAD, cannot do."""
    for library in plan.preload:
        if not library.startswith("/") or any(c in library for c in ": \t\n"):
            raise UsageError(
                f"LD_PRELOAD cannot contain the path {library!r}",
                hint="link the library to an absolute path without spaces and colons, tune again",
            )
    reason = None
    if plan.precision == "fp16":
        reason = "fp16: on a CPU, transformers and accelerate would train in fp32 without a message"
    if plan.world_size > 1 and plan.backend != "gloo" and not backend_flags(versions, plan.backend):
        reason = f"{plan.backend}: no argument of them selects it"
    elif plan.world_size > 1 and plan.backend == "ccl":
        few = why_too_few_ccl_workers(plan.ccl_workers)
        reason = few and f"ccl: {few}"
    if plan.ipex and not ipex_use(versions).possible:
        reason = f"IPEX: {ipex_use(versions).reason}"
    if reason is not None:
        raise UsageError(
            f"these versions ({versions.describe()}) cannot train with {reason}",
            hint="tune with the versions that the job has",
        )


def refuse_unchosen_batch(workload: Workload, plan: Plan, delivery: Delivery) -> None:
    """Raise UsageError if each of the ranks of several nodes would take the script's own batch.

    Neither a flag nor apply_plan.py divides it then, so the user has to choose the global batch.
    """
    owned = workload.framework == "pytorch"
    chosen = workload.batch_per_rank is not None or delivery.sets_objects
    if plan.nodes == 1 or chosen or (workload.global_batch_size is not None and not owned):
        return
    samples = workload.global_batch_size
    product = ""
    if samples:
        product = f", {plan.world_size} × {samples} = {plan.world_size * samples} samples"
    hint = (
        "--global-batch-size N divides N samples over the ranks, --batch-per-rank N gives each of "
        "them N"
    )
    if owned:
        hint = "change the batch in the script, and say what each rank takes: --batch-per-rank N"
    raise UsageError(
        f"each of {plan.world_size} ranks on {plan.nodes} nodes would take the batch that "
        f"{workload.name} has by itself{product}: no option says that global batch",
        hint=hint,
    )


def judged(job: LaunchJob, files: tuple[EmittedFile, ...]) -> tuple[EmittedFile, ...]:
    """The files, if the doctor accepts what they start; its warnings are notes of the main one.

    Raises UsageError for the errors of a file, with the fix of the first.
    """
    warnings = []
    for file in files:
        errors = []
        for finding in _faults_of(file, job):
            if finding.code == one_process.code and file is not files[0]:
                continue  # accelerate before 1.5 reads its host file from the launch line alone
            if finding.severity is Severity.ERROR:
                errors.append(finding)
            else:
                warnings.append(f"{finding.title}: {finding.evidence}")
        if errors:
            problems = "; ".join(f"{error.evidence} ({error.title})" for error in errors)
            raise UsageError(problems, hint=errors[0].command or errors[0].remedy)
    main, *others = files
    return (replace(main, notes=(*main.notes, *warnings)), *others)


def context_of(
    workload: Workload, target: HostFacts, host: Host | None, *, name: str = ""
) -> Context:
    """What judges the words of this training on the machines of its job."""
    return Context(
        name=name, facts=target, host=host or Host(), here=False, parser=parser_of(workload)
    )


def _faults_of(file: EmittedFile, job: LaunchJob) -> tuple[Finding, ...]:
    """What is wrong with the launches of a file, or with its document, wherever it runs."""
    context = context_of(job.workload, job.machine.target, job.machine.host, name=file.name)
    on_target = context.on(file.target)
    launches = (JudgedLaunch.of(launch, on_target) for launch in file.launches)
    findings = list(dict.fromkeys(chain.from_iterable(map(judge_everywhere, launches))))
    if file.document is not None:
        findings += judge_document(Document(value=file.document), context) or ()
    return by_severity(findings)

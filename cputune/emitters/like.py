"""``emit --like FILE``: the user's own launch, with the words that the plan changes.

The file is first updated as by ``doctor --check-file --print-fix``. Then its variables, the flags
of its script and its launcher become those of the plan; all else stays. A comment at each change
says its gain, and the last line is the plan for ``cputune verify``.

Slurm and the kubelet assign CPUs, so batch scripts and pods are not bound. A configuration of
accelerate has only ranks and precision; a note names the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cputune.doctor.checkfile import fix_text, is_yaml
from cputune.doctor.files.accelerate import MARKS
from cputune.doctor.files.context import Context
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.files.kubeflow import RANKS, job_launches
from cputune.doctor.files.yaml_spans import read_documents
from cputune.emitters.bash import variables
from cputune.emitters.checked_words import ShellWord
from cputune.emitters.command import (
    APPLY_SCRIPT,
    RANK_SCRIPT,
    applied,
    of_ranks,
    standing_alone,
)
from cputune.emitters.format import Emission, EmittedFile, LaunchJob
from cputune.emitters.hand import bound as binds, without_code
from cputune.emitters.manifest import decided
from cputune.emitters.prepared import make_job, target_facts, versions_of
from cputune.emitters.promise import Promise
from cputune.errors import UsageError
from cputune.host import Host
from cputune.launch.edit import Edit, apply
from cputune.launch.launch import CONFINERS, Launch
from cputune.launch.launchers.torchrun import on_this_machine
from cputune.launch.located_words import number_of
from cputune.launch.places import Places
from cputune.launch.shell import read_launches
from cputune.launch.target import allocated, target_of
from cputune.launch.translate import Translated
from cputune.launch.write import exact
from cputune.plans.delivery.environment import is_cleared
from cputune.plans.workload import Workload
from cputune.records.claims import FASTER, ClaimContext, Speedup
from cputune.records.ladder import keeping
from cputune.records.result import Result
from cputune.records.shared_texts import OUTCOME_WORDS
from cputune.text import cpulist
from cputune.text.plain import count

_BY_VARIABLE = {"LD_PRELOAD": ("allocator", "openmp"), "OMP_NUM_THREADS": ("layout",)}
_LAYOUT = "layout"
_FORMATS = {"PyTorchJob": "pytorchjob", "TrainJob": "trainjob"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The changed file, and what it needs ``beside`` it in the folder of the launch.

    ``notes`` say what it cannot have.
    """

    text: str
    beside: tuple[EmittedFile, ...] = ()
    notes: tuple[str, ...] = ()


def launch_in(text: str, name: str) -> Launch | None:
    """The launch of a file, the last of several; None in a configuration of accelerate.

    Raises UsageError without one.
    """
    if not is_yaml(text, name):
        launches = list(read_launches(text, name))
    else:
        launches = []
        for document in read_documents(text, name):
            if not document.mapping().keys().isdisjoint(MARKS):
                return None
            if document.get("kind") in _FORMATS:
                launches += job_launches(document)
    if not launches:
        raise UsageError(
            f"no training command was found in {name}",
            hint="it takes a launch script, sbatch, accelerate YAML, PyTorchJob or TrainJob",
        )
    return launches[-1]


def like(text: str, name: str, result: Result | None, options: Emission) -> Rewritten:
    """The file with what the plan changes. Raises UsageError for what it cannot have."""
    result = None if result is None else keeping(result, options.keep)
    facts = target_facts(options.facts, _versions(result, options))
    host = options.host or Host()
    current, _ = fix_text(text, name, facts, host, compared=False)
    launch = launch_in(current, name)
    machines = _machines(current, name, launch)
    options = replace(options, workload=_workload(launch, options, facts, host))
    job = standing_alone(make_job(result, options))
    if job.plan.nodes > 1 or machines > 1:
        raise UsageError(
            f"--like changes launches of one machine; the plan is for "
            f"{count(job.plan.nodes, 'node')}, {name} for {count(machines, 'node')}",
            hint="cputune emit --format slurm --nodes N, or mpirun, writes launches of several",
        )
    if launch is None:
        return _configuration(current, job)
    if job.workload.recipe is not None or (_needs_code(job) and is_yaml(text, name)):
        raise UsageError(
            "this plan needs files next to the launch, which this document cannot hold",
            hint="cputune emit --format pytorchjob, or trainjob, writes an image that holds them",
        )
    return _launch(current, name, launch, job, result)


def _machines(text: str, name: str, launch: Launch | None) -> int:
    """Machines that the file starts ranks on, as far as its words say."""
    if launch is not None:
        return max(launch.machines, target_of(text).nodes or 1)
    machines = 1
    for document in read_documents(text, name):
        machines = max(machines, number_of(str(document.get("num_machines"))) or 1)
    return machines


def _needs_code(job: LaunchJob) -> bool:
    """Whether ``apply_plan.py`` runs the script: flags and variables alone do not set the plan."""
    return bool(applied(without_code(job)))


def _versions(result: Result | None, options: Emission) -> dict[str, str]:
    """The versions of the job: the tuned ones, or the machine's, and those that are named."""
    of_machine = {} if options.facts is None else versions_of(options.facts)
    tuned = dict(of_machine if result is None else result.versions)
    return {**tuned, **(options.versions or {})}


def _workload(
    launch: Launch | None, options: Emission, facts: object, host: Host
) -> Workload | None:
    """What the file trains, and that it takes flags if its text or its name shows that."""
    workload = options.workload
    if launch is None or workload is None or workload.framework is not None:
        return workload
    context = Context(name="", facts=facts, host=host)  # type: ignore[arg-type]
    if not JudgedLaunch.of(launch, context).is_trainers("--bf16"):
        return workload
    ranks = launch.ranks or 1
    return replace(workload, framework="trainer", parses_arguments=True, launch_ranks=ranks)


# --- A launch in shell, or in a pod ----------------------------------------------------


def _launch(
    text: str, name: str, launch: Launch, job: LaunchJob, result: Result | None
) -> Rewritten:
    in_yaml = is_yaml(text, name)
    places = Places(text, yaml=in_yaml)
    by_slurm = target_of(text).source == "#SBATCH"
    planned: dict[str, str] = {str(name): str(value) for name, value in variables(job).items()}
    notes = list[str]()
    if (in_yaml or launch.sealed) and "LD_PRELOAD" in planned:
        preload = planned.pop("LD_PRELOAD")
        notes.append(f"LD_PRELOAD={preload} is a path of this machine: name the image's own")
    if in_yaml:
        edits = list(_ranks_of_a_pod(text, name, job.plan.world_size))
    else:
        edits = list(_started(places, launch, job, bound=not by_slurm))
        notes += _left_out(launch)
    edits += _flags(places, launch, job)
    of_plan = {name: value for name, value in planned.items() if not _same(launch, name, value)}
    edits += _variables(places, launch, of_plan, result, job.speed.context)
    for name_set in _cleared(launch, job, in_image=in_yaml or launch.sealed is not None):
        if name_set not in planned:
            edits += places.unset_variable(launch, name_set)
    if by_slurm:
        edits += allocated(text, tasks=1, cpus_per_task=sum(map(len, job.plan.cpus)))
    after = apply(text, edits)
    if edits:
        after = _commented(after, name, _worth(result, job.speed.context, _named(of_plan)))
    kind = _format(after, name, launch, by_slurm)
    if kind is not None:
        after = _promised(after, name, job, kind)
    beside = _companions(job, starts_ranks=not by_slurm and not in_yaml)
    if launch.sealed is not None and beside:
        named = " and ".join(file.name for file in beside)
        notes.append(f"the container needs {named}: mount the folder, or copy into the image")
    return Rewritten(text=after, beside=beside, notes=tuple(notes))


def _companions(job: LaunchJob, *, starts_ranks: bool) -> tuple[EmittedFile, ...]:
    """The files that the launch needs; srun and the operators start their ranks themselves."""
    needed = set()
    if _needs_code(job):
        needed.add(APPLY_SCRIPT)
    if starts_ranks:
        needed.add(RANK_SCRIPT)
    return tuple(companion for companion in job.companions if companion.name in needed)


# What a plan decides itself.
_OF_THE_PLAN = (
    *("ranks", "ranks per node", "nodes", "module", "threads", "precision", "use cpu"),
    *("standalone", "program", "bind", "variable", "map"),
)


def _left_out(launch: Launch) -> Iterator[str]:
    """The options of a launcher that the plan's own launcher replaces, each by name."""
    if launch.launcher == "python":
        return
    for one in launch.given:
        if one.option is None or one.option.means not in _OF_THE_PLAN:
            yield f"{one.text} is left out: the plan starts its ranks itself; add it if you need it"


_RENDEZVOUS: tuple[str, ...] = ("MASTER_ADDR", "MASTER_PORT")
# With ``WORLD_SIZE=4`` accelerate would make a lone rank wait for others.
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def _cleared(launch: Launch, job: LaunchJob, *, in_image: bool) -> Iterator[str]:
    """The variables of a launch that would change a plan."""
    kept = _RENDEZVOUS
    if job.plan.world_size > 1:
        kept += _NUMBERS
    if in_image:
        kept += ("LD_PRELOAD",)  # a path in the image
    for name in launch.environment:
        if is_cleared(name) and name not in kept:
            yield name


def _same(launch: Launch, name: str, value: str) -> bool:
    return launch.environment.get(name) == value


def _variables(
    places: Places,
    launch: Launch,
    planned: dict[str, str],
    result: Result | None,
    context: ClaimContext,
) -> Iterator[Edit]:
    """Each variable in its place; those without one in one line before the launch, or as options of
    its container.
    """
    new = list[str]()
    for name, value in planned.items():
        if places.yaml or (places.assigned(name) and name not in launch.outside):
            yield from places.set_variable(launch, name, value)
        else:
            new.append(f"{name}={ShellWord(value)}")
    if new and launch.sealed is not None:
        yield from places.pass_on(launch.sealed, *new)
    elif new:
        worth = _worth(result, context, _named(planned), only=True)
        beside = f"  # {worth}" if worth else ""
        yield from places.line_before(launch, f"export {' '.join(new)}{beside}")


def _named(variables: Iterable[str]) -> frozenset[str]:
    """The knobs that these variables set, and that no word of the launch shows."""
    knobs = set[str]()
    for name in variables:
        knobs.update(_BY_VARIABLE.get(name, ()))
    return frozenset(knobs - {_LAYOUT})


def _flags(places: Places, launch: Launch, job: LaunchJob) -> Iterator[Edit]:
    """The arguments of the plan, which replace the script's own or follow its name."""
    new = list[str]()
    for flag, value in _pairs(job.inside.flags):
        typed = launch.argument(flag)
        off = value.lower() in ("false", "no")
        if typed is None:
            if not off or flag not in ("--bf16", "--fp16", "--torch_compile"):
                new += [flag, value] if value and value != "True" else [flag]
            continue
        # A variable of the shell may be anything: it stays if the plan turns the flag on.
        typed_on = typed.lower() in ("", "true") or typed.startswith("$")
        if typed == value or (typed_on and value.lower() in ("", "true")):
            continue
        for tokens in places.flags(launch, f"{flag} {typed}" if typed else flag):
            if "=" in tokens[0].text:
                yield places.becomes(tokens[0], f"{flag}={value}")
            elif len(tokens) > 1:
                yield places.becomes(tokens[1], value)
            else:
                yield places.after(tokens[0], (value,))
    if new:
        yield from places.add_flags(launch, *new)


def _pairs(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """``--bf16 True --use_cpu`` as flags with values."""
    for at, word in enumerate(flags):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            following = flags[at + 1 : at + 2]
            if not value and following and not following[0].startswith("--"):
                value = following[0]
            yield name, value


def _started(places: Places, launch: Launch, job: LaunchJob, *, bound: bool) -> Iterator[Edit]:
    """The launcher of the plan, and the CPUs that its ranks are bound to."""
    ranks = job.plan.world_size
    tokens = places.of(launch)
    companion_words = (APPLY_SCRIPT,) if _needs_code(job) else ()
    is_plain = launch.launcher == "python" and ranks == 1 and not _needs_code(job)
    program = next((token for token in tokens if token.text == launch.program), None)
    if program is None:
        return
    if is_plain and not bound:
        return
    if is_plain:
        binding = f"taskset -c {cpulist.render(job.plan.cpus[0])}"
        start = program.start
        for token in tokens:
            if token.text.rpartition("/")[2] in CONFINERS:
                start = min(token.start, program.start)
                break
        if places.text[start : program.start].split() != binding.split():
            yield Edit(start=start, end=program.start, text=f"{binding} ")
        return
    module = ("-m",) if launch.module else ()
    if bound and ranks > 1:
        cpus = "/".join(map(cpulist.render, job.plan.cpus))
        own_options = ("--launcher", "torch", "--cpus", cpus, *of_ranks(job), "--")
        starting = ("torchrun", *on_this_machine(ranks), RANK_SCRIPT, *own_options)
    elif bound:
        starting = binds(job, "python", (launch.script,)).words[:-1]
    elif ranks == 1:
        starting = ("python",)
    else:
        starting = ("torchrun", *on_this_machine(ranks))
    replacement = (*map(exact, starting), *companion_words, *module)
    yield from places.relaunched(launch, Translated(words=replacement))


def _ranks_of_a_pod(text: str, name: str, ranks: int) -> Iterator[Edit]:
    """The number of ranks that a job starts in each pod; a PyTorchJob has it as text."""
    for document in read_documents(text, name):
        kind = str(document.get("kind"))
        written = document.words.get(RANKS.get(kind, ()))
        if written is not None and written.span is not None and written != str(ranks):
            number = f'"{ranks}"' if kind == "PyTorchJob" else str(ranks)
            yield Edit(start=written.span.start, end=written.span.end, text=number)


# --- accelerate's configuration ---------------------------------------------------------


def _configuration(text: str, job: LaunchJob) -> Rewritten:
    """Precision and the CPU for one rank; several need a host file and an mpirun."""
    if job.plan.world_size > 1:
        raise UsageError(
            f"accelerate binds no ranks, and this plan has {job.plan.world_size}",
            hint="cputune emit --format accelerate writes its files",
        )
    places = Places(text, yaml=True)
    precision = "'no'" if job.plan.precision == "fp32" else job.plan.precision
    edits = [
        *places.set_key("mixed_precision", precision),
        *places.set_key("num_processes", "1"),
        *places.set_key("distributed_type", "'NO'"),
        *places.set_key("use_cpu", "true"),
    ]
    assignments = []
    for name, value in variables(job).items():
        if not name.startswith("ACCELERATE_"):
            assignments.append(f"{name}={ShellWord(value)}")
    line = " ".join(assignments)
    bound = f"taskset -c {cpulist.render(job.plan.cpus[0])}"
    note = f"it sets no threads, CPUs or allocator; type {line} {bound} accelerate launch …"
    return Rewritten(text=apply(text, edits), notes=(note,))


# --- What is said beside the changes ----------------------------------------------------


def _times(gain: Speedup) -> str:
    return f"×{gain.ratio:.2f} ({gain.low:.2f} to {gain.high:.2f})"


def _worth(
    result: Result | None, context: ClaimContext, knobs: frozenset[str], *, only: bool = False
) -> str:
    """What was measured: of these knobs ``only``, or of the whole plan.

    In another context than that of the measurement no ratio is given.
    """
    if result is None:
        return "" if only else "cputune: not measured, the guides' plan for this machine"
    in_context = result.claim.in_context(context)
    if not in_context.applies:
        return "" if only else f"cputune: {in_context.not_measured}"
    gains = []
    for step in result.worth:
        is_of_knobs = not knobs.isdisjoint(step.knob.split(", "))
        if is_of_knobs == only:
            gains.append(f"{step.value} {_times(step.speedup)}")
    if only:
        return f"cputune: {', '.join(gains)}" if gains else ""
    speedup = result.speedup
    if speedup is None:
        return f"cputune: not compared with the launch before; measured {in_context.measured}"
    times = f"{speedup.ratio:.2f} times the launch before ({speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.outcome == FASTER and not speedup.narrow:
        times = "faster than the launch before"
    elif speedup.outcome != FASTER:
        times = f"{OUTCOME_WORDS[speedup.outcome]}: the best other plan ran {times}"
    first = f"cputune: {times}, measured {in_context.measured}"
    return f"{first}: {', '.join(gains)}" if gains else first


def _commented(text: str, name: str, worth: str) -> str:
    """The gain in a line before the launch; in YAML before the key of the command."""
    launch = launch_in(text, name)
    if launch is None or not launch.line:
        return text
    places = Places(text)
    return apply(text, places.line_before(launch, f"# {worth}"))


def _format(text: str, name: str, launch: Launch, by_slurm: bool) -> str | None:
    """The consumers by which `cputune verify` runs it; None if none of them starts it."""
    if is_yaml(text, name):
        kind = next((document.get("kind") for document in read_documents(text, name)), "")
        return _FORMATS.get(str(kind))
    return None if by_slurm or launch.part else "torchrun"


def _promised(text: str, name: str, job: LaunchJob, format: str) -> str:
    """The file with the plan in its last line, which replaces an older one.

    Its training has the words of the file; none is promised if a shell fills them in.
    """
    text = re.sub(r"(?m)^# cputune-plan: .*\n?", "", text)
    ended = text if text.endswith("\n") else f"{text}\n"
    launch, trained = launch_in(text, name), job.promise.trained
    file_words = () if launch is None else launch.argv
    if trained is not None:
        filled = any(re.search(r"[$`]", word) for word in file_words)
        trained = replace(trained, words=() if filled else file_words)
    promise = replace(job.promise, format=format, trained=trained)
    if is_yaml(text, name):
        promise = _of_document(promise, text, name)
    return ended + promise.line()


def _of_document(promise: Promise, text: str, name: str) -> Promise:
    """The promise with what the job's document decides; a flag may stand for a variable."""
    jobs = [one.value for one in read_documents(text, name) if one.get("kind") in _FORMATS]
    document = decided(jobs[-1])
    set_there = {key.rpartition(": ")[2] for key in document}
    environment = {}
    for variable, value in (promise.environment or {}).items():
        if variable in set_there:
            environment[variable] = value
    return replace(promise, environment=environment, document=document)

"""A result for people, and the list of those that were kept: terminal, Markdown, CSV, documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cputune import cpulist
from cputune.carrier.command import carried
from cputune.documents import plain
from cputune.emitters.header import changed_since, machine, machine_difference, section
from cputune.history import Kept
from cputune.knobs import KEPT, Keeps, knob_named, least_kept
from cputune.plan import Plan
from cputune.portrait import topology_of
from cputune.report.diagnosis import STYLES
from cputune.report.machine import gib
from cputune.report.tuning import plans, result_table, value_words
from cputune.report.writing import (
    Rows,
    csv_text,
    fenced,
    markdown_table,
    markdown_text,
    markdown_verdict,
    print_hanging,
    print_heading,
    print_labelled,
    print_picture,
    print_verdict,
    rich_table,
)
from cputune.result import COLUMNS, Measured, Profile, Result, Speedup, Throughput, trial_rows
from cputune.text import figure, visible
from cputune.tuner.changes import LAYOUT, layout_words, separate_knobs, shape
from cputune.words import TUNE_AGAIN, Verdict, duration, factor, verdict_of
from cputune.workload import Workload

if TYPE_CHECKING:
    from rich.console import Console

    from cputune.facts import HostFacts, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMade:
    """One thing to change on the way from today's launch to the best plan.

    Several knobs stand together, with commas, where they were measured together. ``keeps`` is what
    of the training stays the same, in words. ``worth`` is
    how many times as fast this change makes the plan before it; None where nobody knows: it was
    not measured by itself, or others disturbed the machine.
    """

    knob: str
    today: str
    best: str
    keeps: str
    worth: Speedup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A result in few words and numbers.

    Attributes:
        verdict: what it means, what to do now, and how sure it is.
        today: the launch that was compared with, and its speed.
        best: the recommendation; ``today`` itself where nothing beat it.
        speedup: of best over today; None where no factor is to be said.
        changes: what makes ``best`` of ``today``, in the order in which it was measured.
        machine: (label, text) of the machine that it was measured on.
        work: (label, text) of what was trained.
        study: (label, text) of how it was searched.
        versions: of the training stack and of cputune, by distribution name.
        notes: what a reader needs in order to trust it.
    """

    verdict: Verdict
    today: Measured
    best: Measured
    speedup: Speedup | None
    changes: tuple[ChangeMade, ...]
    machine: tuple[tuple[str, str], ...]
    work: tuple[tuple[str, str], ...]
    study: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def nothing_to_change(self) -> bool:
        """Whether today's launch is the recommendation."""
        return self.best.plan == self.today.plan


def summary_of(result: Result, file: str = "cputune.json") -> Summary:
    """All that a page says of a result but its trials; commands name it ``file``."""
    sure = result.speedup.narrow and not result.disturbed
    return Summary(
        verdict=verdict_of(result, launch_commands(file, result.best.plan.nodes)[0]),
        today=result.baseline,
        best=result.best,
        speedup=result.speedup if sure else None,
        changes=changes_of(result),
        machine=tuple(_machine(result.host)),
        work=tuple(_work(result.workload, result.data)),
        study=tuple(_study(result)),
        versions=dict(result.versions),
        notes=result.notes,
    )


def changes_of(result: Result) -> tuple[ChangeMade, ...]:
    """What differs between today's launch and the best plan, and what each is worth."""
    today, best = result.baseline.plan, result.best.plan
    left = dict(_differences(today, best))
    ranks = knob_named("ranks").keeps if today.world_size != best.world_size else "numbers"
    found = []
    for worth in result.worth:
        names = [name for name in worth.knob.split(", ") if name in left]
        if names:
            values = [left.pop(name) for name in names]
            known = worth.speedup.narrow and not result.disturbed
            found.append(_change(names, values, ranks, worth.speedup if known else None))
    return (*found, *(_change([name], [values], ranks, None) for name, values in left.items()))


def _change(
    names: list[str], values: list[tuple[str, str]], ranks: Keeps, worth: Speedup | None
) -> ChangeMade:
    kept = (ranks if name == LAYOUT else knob_named(name).keeps for name in names)
    return ChangeMade(
        knob=", ".join(names),
        today=", ".join(today for today, _ in values),
        best=", ".join(best for _, best in values),
        keeps=KEPT[least_kept(kept)],
        worth=worth,
    )


def _differences(today: Plan, best: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    """(knob, (today's value, the best plan's)) of each that differs; the layout first."""
    if shape(today) != shape(best):
        words = layout_words(today), layout_words(best)
        if words[0] == words[1]:
            words = _on_cpus(today), _on_cpus(best)
        yield LAYOUT, words
    between = ("backend", "ccl_workers") if min(today.world_size, best.world_size) > 1 else ()
    for name in (*between, *separate_knobs()):  # a single rank has nobody to agree with
        values = today.value(name), best.value(name)
        if values[0] != values[1]:
            yield name, (value_words(values[0]), value_words(values[1]))


def _on_cpus(plan: Plan) -> str:
    return f"{layout_words(plan)} on CPUs {cpulist.render(cpu for r in plan.cpus for cpu in r)}"


def places(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Who of a plan runs on which CPUs: each rank, and the oneCCL workers of each."""
    found = {f"rank {number}": cpus for number, cpus in enumerate(plan.cpus)}
    workers = {f"workers of rank {n}": cpus for n, cpus in enumerate(plan.ccl_cpus) if cpus}
    return {**found, **workers}


def worth_words(change: ChangeMade) -> str:
    """``×2.10 (2.02–2.18)``, and whether that is sure."""
    if change.worth is None:
        return "not known"
    sure = change.worth.significant or change.worth.high < 1
    return factor(change.worth) + ("" if sure else ", not sure")


def allowed_cpus(result: Result) -> frozenset[int] | None:
    """The CPUs that were allowed; None where the result does not say so."""
    text = section(result.host, "topology").get("allowed")
    try:
        return frozenset(cpulist.parse(text)) if isinstance(text, str) else None
    except ValueError:
        return None


def _machine(host: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What a result says of its machine; what it does not say is left out."""
    yield "machine", machine(host)
    cpu, topology, limits = (section(host, name) for name in ("cpu", "topology", "limits"))
    if cpu.get("codename") and cpu.get("model_name"):
        yield "codename", str(cpu["codename"])
    for key, label in (("numa_nodes", "NUMA nodes"), ("threads_per_core", "threads per core")):
        if topology.get(key):
            yield label, str(topology[key])
    if topology.get("allowed"):
        yield "allowed CPUs", str(topology["allowed"])
    if limits.get("cpu_quota"):
        yield "CPU quota", str(limits["cpu_quota"])
    if isinstance(limits.get("memory_bytes"), int):
        yield "memory limit", gib(limits["memory_bytes"])


def _work(workload: Workload, data: str | None) -> Iterator[tuple[str, str]]:
    recipe = workload.recipe
    if recipe is not None:
        yield "recipe", workload.name
        yield "task", recipe.task
        yield "sequence length", str(recipe.sequence_length)
    else:
        yield "script", " ".join(workload.argv)
    if workload.batch_per_rank is not None:
        yield "batch", f"{workload.batch_per_rank} samples of each rank per step"
    elif workload.global_batch_size is not None:
        yield "batch", f"{workload.global_batch_size} samples per step"
    if data:
        yield "data", data


def _study(result: Result) -> Iterator[tuple[str, str]]:
    if result.created:
        yield "measured", result.created
    counts = dict.fromkeys(("completed", "pruned", "failed"), 0)
    for trial in result.trials:
        counts[trial.state] += 1
    kinds = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    yield "trials", f"{len(result.trials)}" + (f" ({kinds})" if kinds else "")
    if result.seconds is not None:
        yield "took", duration(result.seconds)
    asked = (("", result.sampler), ("budget ", result.budget), ("seed ", result.seed))
    search = ", ".join(f"{label}{value}" for label, value in asked if value is not None)
    if search:
        yield "search", search
    yield "side by side", _confirmed(result)
    if result.energy_unknown is not None:
        yield "energy", f"not known: {result.energy_unknown}"


def _confirmed(result: Result) -> str:
    """What stands behind the factor."""
    if not result.confirmation:
        return "not confirmed: speeds are those of single trials"
    failed = sum(run.samples_per_second is None for run in result.confirmation)
    pairs = f"{result.speedup.pairs} pairs" if result.speedup.pairs else "no pairs"
    return f"{pairs}, {len(result.confirmation)} runs" + (f", {failed} failed" if failed else "")


def launch_commands(file: str, nodes: int = 1) -> tuple[str, ...]:
    """Train with the best plan of a result file: at once, and by files that launch it."""
    words = shlex.quote(file)
    now = f"cputune run {words}"
    if nodes > 1:
        now = f"cputune emit --format mpirun -o launch {words} && sh launch/mpirun.sh"
    return now, f"cputune emit --format torchrun -o launch {words}"


def tune_command(result: Result) -> str:
    """The command of the study, as far as its result knows."""
    job = result.workload
    words = ["cputune", "tune"]
    for option, value in (
        ("--budget", result.budget),
        ("--seed", result.seed),
        ("--batch-per-rank", job.batch_per_rank),
        ("--hosts", ",".join(result.hosts) or None),
    ):
        words += [] if value is None else [option, str(value)]
    words += result.asked
    if job.recipe is None:
        return f"{shlex.join(words)} -- {for_shell(job, job.launch or job.argv)}"
    if job.global_batch_size not in (None, job.recipe.global_batch_size):
        words += ["--global-batch-size", str(job.global_batch_size)]
    return shlex.join([*words, "--recipe", job.recipe.name])


_CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


def install_command(versions: Mapping[str, str]) -> str | None:
    """What installs these versions of the training stack; None where none is known.

    A version of torch that ends in ``+cpu`` is on PyTorch's own page alone.
    """
    pins = [f"{n}=={v}" for n, v in sorted(versions.items()) if n not in ("python", "cputune")]
    page = ["--extra-index-url", _CPU_WHEELS] if any(p.endswith("+cpu") for p in pins) else []
    return shlex.join(["pip", "install", *pins, *page]) if pins else None


def for_shell(workload: Workload, words: Sequence[str]) -> str:
    """Words of a command for bash: secrets as the variables that hold them."""
    found = []
    for word in words:
        secret = workload.secret_of(word)
        found.append(
            shlex.quote(word)
            if secret is None
            else (shlex.quote(secret[0]) if secret[0] else "") + f'"${secret[1]}"'
        )
    return " ".join(found)


LEAST_SHARE = 0.005
"""A kind that takes less is not worth a word."""

WORTH_A_HINT = 0.05

HINTS = {"dropout masks": ("dropout", "draws the masks on all threads")}
"""By what the time is spent on: the knob that is for it, and what that does."""

WORDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def profile_lines(result: Result) -> tuple[str, ...]:
    """What its time is spent on, how far its products are from the limit, and what would help."""
    profile = result.profile
    if profile is None:
        return ()
    shares = ", ".join(
        f"{kind} {100 * share:.0f} %"
        for kind, share in profile.shares.items()
        if share >= LEAST_SHARE
    )
    return (f"where its time goes: {shares}", *_limit(profile), *_hints(result, profile))


def _limit(profile: Profile) -> Iterator[str]:
    if profile.gflops is None:
        yield "how far its matrix products are from the limit is not known: IPEX tells none"
    elif profile.limit_gflops:
        yield (
            f"its matrix products: {figure(profile.gflops)} GFLOP/s over the whole step, "
            f"{100 * profile.gflops / profile.limit_gflops:.0f} % of the "
            f"{figure(profile.limit_gflops)} that its cores reach in "
            f"{WORDS.get(profile.dtype or '', profile.dtype)}"
        )


def _hints(result: Result, profile: Profile) -> Iterator[str]:
    """The knobs that nobody has asked for, where they could matter."""
    could_be = {out.what for out in result.left_out}
    for kind, (knob, does) in HINTS.items():
        if profile.shares.get(kind, 0.0) >= WORTH_A_HINT and knob in could_be:
            yield f"--knobs +{knob} {does} (docs/knobs.md)"


SCHEMA = "cputune.summary/1"

MOST_PLANS = 15
"""Of the table of plans, the fastest, where not all are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToShow:
    """A result that is to be shown.

    ``file`` is the word by which commands name it. ``facts`` are those of the machine that is
    looked at; None where nothing is known of it.
    """

    result: Result
    file: str
    facts: HostFacts | None = None

    @property
    def elsewhere(self) -> str | None:
        """In what the machine that it was measured on differs from the one looked at."""
        if self.facts is None:
            return None
        return machine_difference(self.result.host, self.facts)

    @property
    def topology(self) -> Topology | None:
        """Of the machine that was measured: as the result has it, or as it is looked at."""
        if self.result.places:
            return topology_of(self.result.places, allowed_cpus(self.result))
        known = self.facts is not None and not self.elsewhere and self.facts.topology.cores
        return self.facts.topology if self.facts is not None and known else None

    def notes(self) -> tuple[str, ...]:
        """Those of the result, and whether it is of another machine."""
        difference = self.elsewhere
        other = (f"This was measured on another machine: {difference}.",) if difference else ()
        changes = () if self.facts is None or difference else changed_since(self.result, self.facts)
        again = (f"{'; '.join(changes)}: {TUNE_AGAIN}.",) if changes else ()
        return (*other, *again, *self.result.notes)


def speeds(summary: Summary) -> Rows:
    """Today's launch, and the best plan where it is another."""
    sides = [("today", summary.today)]
    if not summary.nothing_to_change:
        sides.append(("best", summary.best))
    return Rows(
        headings=("", "samples/s", "95 % interval", "plan"),
        right=frozenset({"samples/s"}),
        rows=tuple(
            (
                name,
                figure(side.samples_per_second.median),
                interval(side.samples_per_second),
                side.plan.describe(),
            )
            for name, side in sides
        ),
    )


def changes(summary: Summary) -> Rows:
    """What to change, and what each is worth."""
    return Rows(
        headings=("knob", "today", "best", "keeps", "worth"),
        rows=tuple((c.knob, c.today, c.best, c.keeps, worth_words(c)) for c in summary.changes),
    )


def interval(rate: Throughput) -> str:
    """``16.8–17.4``."""
    return f"{figure(rate.low)}–{figure(rate.high)}"


PASTED = ("train", "launch files", "tune again", "variables", "flags")
"""Labels of what is meant for a shell; the first three are commands."""


def launch(shown: ResultToShow) -> tuple[tuple[str, str], ...]:
    """(label, text): how the best plan is started, and what each of its ranks is given."""
    commands = (
        *launch_commands(shown.file, shown.result.best.plan.nodes),
        tune_command(shown.result),
    )
    return (*zip(PASTED, commands, strict=False), *_given(shown.result))


def _given(result: Result) -> Iterator[tuple[str, str]]:
    """What carries the best plan into a rank: variables, flags, CPUs."""
    plan = result.best.plan
    try:
        way = carried(result.workload, plan, result.versions)
    except ValueError as error:  # a batch that was changed by hand
        yield "impossible", str(error)
        return
    if way.variables:
        words = (f"{name}={shlex.quote(value)}" for name, value in way.variables.items())
        yield "variables", " ".join(words)
    if way.flags:
        yield "flags", shlex.join(way.flags)
    if not plan.as_found:
        ranks = (f"{who}: {cpulist.render(cpus)}" for who, cpus in places(plan).items() if cpus)
        yield "CPUs", "; ".join(ranks) or "not bound"


def basis(summary: Summary) -> tuple[tuple[str, str], ...]:
    """(label, text) of what a result rests on: work, study, machine, versions."""
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    told = (("versions", versions),) if versions else ()
    return (*summary.work, *summary.study, *summary.machine, *told)


def markdown(shown: ResultToShow, *, every: bool = False) -> str:
    """The same for pasting into an issue."""
    summary = summary_of(shown.result, shown.file)
    rows = trial_rows(shown.result)
    lines = ["## cputune show", "", *markdown_verdict(summary.verdict)]
    lines += [*markdown_table(speeds(summary)), ""]
    if summary.changes:
        lines += ["### What to change", "", *markdown_table(changes(summary)), ""]
    commands = [
        f"# {label}: {text}" if label not in PASTED[:2] else text for label, text in launch(shown)
    ]
    lines += ["### The launch", "", *fenced("\n".join(map(visible, commands)), "sh"), ""]
    most = len(rows) if every else MOST_PLANS
    lines += ["### The plans", "", *markdown_table(plans(shown.result, most)), ""]
    if len(rows) > most:
        lines += [f"{len(rows) - most} slower ones are left out (`--all`).", ""]
    for heading, levers in _levers(shown.result):
        lines += [f"### {heading}", "", *(f"- {markdown_text(line)}" for line in levers), ""]
    lines += ["### What it rests on", ""]
    lines += [*markdown_table(Rows(headings=("", ""), rows=basis(summary))), ""]
    lines += [f"- {f.severity}: {markdown_text(f.title)}" for f in shown.result.findings or ()]
    lines += [f"- {markdown_text(note)}" for note in shown.notes()]
    return "\n".join(lines).rstrip() + "\n"


def _levers(result: Result) -> Iterator[tuple[str, list[str]]]:
    """What pays, in words under its heading: what was not tried, and what is done."""
    headings = {"Not tried, and would pay": result.untried, "Done": result.done}
    yield from (
        (heading, [one.words for one in those]) for heading, those in headings.items() if those
    )


def csv_of_trials(result: Result) -> str:
    """Every trial, a row for each, in the columns of ``Result.to_frame``."""
    return csv_text(tuple(COLUMNS), (row.values() for row in trial_rows(result)))


def document(shown: ResultToShow) -> dict[str, object]:
    """The ``cputune.summary/1`` document: what the page says, without the plans in full."""
    summary = summary_of(shown.result, shown.file)
    return {
        "schema": SCHEMA,
        "verdict": summary.verdict.means,
        "do": summary.verdict.do,
        "sure": summary.verdict.sure,
        "speedup": plain(summary.speedup),
        "today": plain(summary.today),
        "best": plain(summary.best),
        "changes": plain(summary.changes),
        "launch": dict(launch(shown)),
        "places": {who: cpulist.render(cpus) for who, cpus in places(summary.best.plan).items()},
        "work": dict(summary.work),
        "study": dict(summary.study),
        "machine": dict(summary.machine),
        "other_machine": shown.elsewhere,
        "versions": dict(summary.versions),
        "findings": plain(shown.result.findings),
        "untried": plain(shown.result.untried),
        "done": plain(shown.result.done),
        "notes": list(summary.notes),
        "trials": trial_rows(shown.result),
    }


def print_result(
    shown: ResultToShow, console: Console, *, every: bool = False, brief: bool = False
) -> None:
    """The verdict first, then what to change, the launch, the plans, and what they rest on.

    ``brief``: at the end of a study, without the launch, the doctor's findings and the machine.
    """
    from rich.text import Text

    summary = summary_of(shown.result, shown.file)
    good = summary.speedup is not None and summary.speedup.significant
    print_verdict(summary.verdict, console, good=good)
    console.print()
    console.print(rich_table(speeds(summary)))
    if summary.changes:
        print_heading(console, "What to change")
        console.print(rich_table(changes(summary)))
    if not brief:
        print_heading(console, "The launch")
        print_labelled(console, launch(shown), PASTED)
    print_heading(console, "The plans")
    most = None if every else MOST_PLANS
    console.print(result_table(shown.result, width=console.width, most=most))
    hidden = 0 if every else len(shown.result.trials) - MOST_PLANS
    if hidden > 0:
        console.print(Text(f"{hidden} slower ones; --all shows them", "dim"))
    for line in profile_lines(shown.result):
        console.print(Text(visible(line)))
    if brief and shown.result.energy_unknown is not None:
        console.print(Text(visible(f"energy not known: {shown.result.energy_unknown}")))
    for heading, levers in _levers(shown.result):
        print_heading(console, heading)
        for line in levers:
            print_hanging(console, Text("- "), Text(visible(line)))
    if not brief:
        _print_findings(shown.result, console)
        print_heading(console, "What it rests on")
        print_labelled(console, basis(summary))
        if shown.topology is not None:
            print_picture(console, shown.topology, places(shown.result.best.plan))
    for note in shown.notes():
        print_hanging(console, Text("note: ", "yellow"), Text(visible(note)))


def show(result: Result, *, every: bool = False) -> None:
    """Print a result, as ``cputune show`` does; ``every`` plan, not the fastest alone."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    print_result(ResultToShow(result=result, file="cputune.json"), console, every=every)


def _print_findings(result: Result, console: Console) -> None:
    """What the doctor said when the study began, a line each."""
    from rich.text import Text

    if not result.findings:
        return
    print_heading(console, "What the doctor found then")
    for found in result.findings:
        words = Text(visible(found.title)).append(f"  [{visible(found.code)}]", "dim")
        print_hanging(console, Text(f"{found.severity:7} ", STYLES[found.severity]), words)


def history_rows(kept: Sequence[Kept]) -> Rows:
    """A row for each, the newest first."""
    return Rows(
        headings=("id", "measured", "machine", "work", "gain", "file"),
        rows=tuple(
            (
                one.id,
                (one.created or "").replace("T", " ")[:16],
                one.machine,
                one.work,
                _gain(one.speedup),
                one.file or "",
            )
            for one in kept
        ),
    )


def _gain(speedup: Speedup | None) -> str:
    if speedup is None:
        return "not known"
    if not speedup.significant:
        return "none"
    return factor(speedup)


def history_document(kept: Sequence[Kept]) -> dict[str, object]:
    """The ``cputune.history/1`` document."""
    return {"schema": "cputune.history/1", "results": [plain(one) for one in kept]}

"""Scripts trained to the end as typed and with a plan: is what was accepted the same training?

    python benchmarks/equivalence/trained.py [--only WORD] [--part 0/2] [-o FILE] [--json FILE]

Each script of ``whole.py`` takes the way that a plan takes in ``tune``: the launch as typed is
started and asked, the plan is started, its ranks are compared, and the whole script is rehearsed
with it. Then the emitted launch of the plan trains to the end, also if the plan was not accepted,
and so does the command as typed. The weights of all ranks at the end are compared, relative to the
way that the weights have gone.

A plan that is accepted, and stopped by the guard of its emitted launch, counts for itself.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from whole import WHOLE, Whole

from cputune.emitters import Emission, EmittedFile, render
from cputune.errors import CputuneError
from cputune.host.facts import HostFacts
from cputune.host.probing import probe
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TrialError
from cputune.tuner.space import search_space

SAME = 0.01
"""Of the way that the weights have gone: rounding in 60 to 1000 steps of AdamW stays below it."""

SPREAD = 1.25
"""How far a plan that draws other numbers may be from the mean of other draws, relative to them."""

TYPED_DRAWS, PLAN_DRAWS = 5, 3
STEPS, REHEARSAL_SECONDS, LONGEST_SECONDS, ENDING_SECONDS = 12, 300.0, 300.0, 10.0

GUARDED = "stopped by the guard"
APART = ("the ranks are apart", "is not equal on all ranks")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
FORKS = False
"""Whether what trains to the end are forks of this process, without torchrun: ``--forks``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one script came out.

    Attributes:
        refused: why the plan was not accepted; empty if it was.
        apart: how far the weights are apart, as a share of their way; of draws relative to others.
        metric: by how much the metric that was written differs, relatively.
        end: how the emitted launch came to its end.
        failed: why there is no outcome.
        other: why it is another training by the way it is written.
    """

    name: str
    lever: str
    refused: str = ""
    apart: float | None = None
    metric: float | None = None
    end: str = ""
    failed: str = ""
    other: str = ""

    @property
    def same(self) -> bool:
        """Whether the plan trains the same to the end, and tells the same metric."""
        limit = SPREAD if "draws" in self.end else SAME
        known = self.apart is not None and (self.apart <= limit or "began" in self.end)
        ended = self.end.startswith("ended")
        return known and ended and not self.other and (self.metric or 0.0) <= SAME

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.failed:
            return "no outcome"
        if self.refused:
            return "needless refusal" if self.same else "rightly refused"
        if self.end == GUARDED:
            return GUARDED
        return "rightly accepted" if self.same else "WRONGLY ACCEPTED"


def accepted(whole: Whole, script: Path, facts: HostFacts) -> tuple[str, Plan, Workload]:
    """Why the plan of a script is refused (empty: it is not), and the plan."""
    knob, value = whole.lever
    with ProcessRunner(Workload.script([str(script)]), facts, offline=True) as runner:
        for _ in islice(runner.steps(runner.baseline_as_typed), STEPS):
            pass
        runner.check_model()
        workload = runner.workload
        fix = {} if knob == "ranks" else {knob: value}
        refused, space = "", None
        try:
            space = search_space(facts, workload, baseline=runner.baseline, fix=fix)
        except CputuneError as error:
            refused = str(error)
        plans = [] if space is None else [p for p, v in space.values.items() if v[knob] == value]
        if not plans or space is None:
            plan = by_hand(whole)
            if space is not None:
                refused = next(
                    (o.why for o in space.left_out if o.what.split("=")[0] == knob), "not in space"
                )
            return refused or "not in the space", plan, workload
        values, own = space.values, space.baseline
        plan = min(
            plans, key=lambda p: sum(values[p][k.name] != own.value(k.name) for k in space.knobs)
        )
        try:
            for _ in islice(runner.steps(plan), STEPS):
                pass
            end = runner.rehearse(plan, REHEARSAL_SECONDS)
            refused = "" if end is None else end.failed
        except TrialError as error:
            refused = str(error).splitlines()[0]
        return refused, plan, workload


def by_hand(whole: Whole) -> Plan:
    """The plan of a lever that is not in the space."""
    knob, value = whole.lever
    cpus = sorted(os.sched_getaffinity(0))
    if knob == "ranks":
        shares = (cpus[:1], cpus[1:2] or cpus[:1])
        return Plan(processes_per_node=2, threads_per_process=1, cpus=tuple(map(tuple, shares)))
    return Plan(
        processes_per_node=1,
        threads_per_process=len(cpus),
        cpus=(tuple(cpus),),
        settings={knob: value},
    )


def run(words: Sequence[str], folder: Path, **variables: str) -> tuple[int | None, str]:
    """Exit status and output of a command in a folder; no status: it did not end in time."""
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, **OFFLINE, **variables}
    environment["PATH"] = f"{bin_folder}:{environment['PATH']}"
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output
    return process.returncode, output


def forked(
    words: Sequence[str], folder: Path, ranks: int, **variables: str
) -> tuple[int | None, str]:
    """The same of python with these words, in forks of this process, which has imported torch."""
    numbers: list[dict[str, str]] = [{}]
    if ranks > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        numbers = [
            {"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": str(ranks), **meet}
            for n in range(ranks)
        ]
    output = folder / "output"
    children = []
    for number in numbers:
        pid = os.fork()
        if pid == 0:
            _child(words, folder, output, {**OFFLINE, **variables, **number})
        children.append(pid)
    until, left, statuses = time.monotonic() + LONGEST_SECONDS, set(children), []
    while left:
        for pid in [*left]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                left.discard(pid)
                statuses.append(os.waitstatus_to_exitcode(status))
                if status:  # as torchrun ends the other ranks
                    until = min(until, time.monotonic() + ENDING_SECONDS)
        if time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            break
        time.sleep(0.02)
    status = next(filter(None, statuses), None if left else 0)
    return status, output.read_text(errors="replace")


def _child(words: Sequence[str], folder: Path, output: Path, variables: Mapping[str, str]) -> None:
    """Run a script as its own process would, and end."""
    status = 1
    try:
        os.setsid()
        atexit._clear()  # what this process has to remove at its end
        os.chdir(folder)
        os.environ.update(variables)
        opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        sys.argv = [*words]
        sys.path[0] = str(folder)
        import torch

        torch.set_num_threads(int(variables.get("OMP_NUM_THREADS", "2")))
        runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How a command trained to the end.

    Attributes:
        failed: how it failed; empty if it did not.
        weights: of its ranks, by the names of the files: "start-0", "end-0", "end-1".
        metric: that it wrote; None if it wrote none.
    """

    failed: str = ""
    weights: Mapping[str, list[Any]] = field(default_factory=dict)
    metric: float | None = None


def truth(
    whole: Whole,
    script: Path,
    plan: Plan,
    workload: Workload,
    facts: HostFacts,
    *,
    torchrun: bool = False,
) -> dict[str, Any]:
    """How the plan really trains: figures of an ``Outcome``."""
    place = script.resolve().parent.parent / ("torchrun" if torchrun else "first")
    seeds: list[Mapping[str, str]] = [{}]
    if whole.draws:
        seeds = [{"DRAWS": str(n)} for n in range(TYPED_DRAWS)]
    alone, several = [], []
    forks = FORKS and not whole.processes and not torchrun
    for number, seed in enumerate(seeds):
        alone.append(trained(script, place / f"typed-{number}", forks=forks, **seed))
        if alone[-1].failed:
            return {"failed": f"as typed it does not train: {alone[-1].failed}"}
    if plan.settings.get("padding") == "cut" and "CUT" in whole.source:
        # The emitted launch looks at each batch again before it cuts it; the script does not.
        cut = trained(script, place / "cut", forks=forks, CUT="1")
        return {"apart": apart_of(alone[0], cut), "end": "ended, cut by the script"}
    files = render(plan, workload, "torchrun", Emission(facts=facts, python=sys.executable))
    for number, seed in enumerate(seeds[:PLAN_DRAWS]):
        folder = place / f"plan-{number}"
        several.append(trained(script, folder, files, plan.world_size, forks=forks, **seed))
        if several[-1].failed:
            return {"end": several[-1].failed}
    if whole.draws:
        return {"apart": apart_of_draws(alone, several), "end": "ended, of other draws"}
    typed, planned = alone[0], several[0]
    metric = None
    if typed.metric is not None and planned.metric is not None:
        scale = max(abs(typed.metric), abs(planned.metric), 1e-9)
        metric = abs(typed.metric - planned.metric) / scale
    apart, end = apart_of(typed, planned), "ended"
    if apart > SAME and _is_rounding(apart, typed, script, place / "nudged", forks=forks):
        end = "ended, as far as weights that began 1e-7 apart"
    return {"apart": apart, "metric": metric, "end": end}


def _is_rounding(apart: float, typed: Trained, script: Path, folder: Path, *, forks: bool) -> bool:
    """Whether one rank ends as far away, if its weights begin 1e-7 apart.

    An optimizer that divides by the size of a gradient (Adafactor) makes rounding large.
    """
    nudged = trained(script, folder, forks=forks, NUDGE="1")
    return not nudged.failed and 2 * apart_of(typed, nudged) >= apart


def trained(
    script: Path,
    folder: Path,
    files: Sequence[EmittedFile] = (),
    ranks: int = 1,
    *,
    forks: bool,
    **more: str,
) -> Trained:
    """Let a script train to the end in a folder of its own; with files: as they launch it."""
    import torch

    words = [sys.executable, script.name]

    (folder / "truth").mkdir(parents=True)
    more["TRUTH"] = str(folder / "truth")
    (folder / script.name).write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
    for file in files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
    names = [file.name for file in files]
    if forks:
        own = [script.name] if "apply_plan.py" not in names else ["apply_plan.py", script.name]
        of_plan = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"} if files else {}
        status, output = forked(own, folder, ranks, **of_plan, **more)
    else:
        status, output = run(["bash", names[0]] if files else words, folder, **more)
    if status != 0:
        said = [line for line in output.splitlines() if "Error" in line]
        last = said[-1:] or [""]
        failed = f"exit status {status}: {last[0][:150]}"
        if any(words in output for words in APART):
            failed = GUARDED
        elif os.environ.get("SHOW"):
            print(output[-3000:])
        return Trained(failed=failed)
    metric = None
    for name in ("metrics.json", "out/eval_results.json"):
        if (folder / name).exists():
            metric = json.loads((folder / name).read_text())["eval_loss"]
    weights = {path.stem: torch.load(path) for path in (folder / "truth").glob("*.pt")}
    return Trained(weights=weights, metric=metric)


def apart_of(typed: Trained, planned: Trained) -> float:
    """How far the ranks of a plan are from the launch as typed, as a share of its way."""
    start, apart = typed.weights["start-0"], 0.0
    for name, weights in planned.weights.items():
        kind = name.rpartition("-")[0]
        if kind != "start":
            own = typed.weights[f"{kind}-0"]
            apart = max(apart, distance(weights, own) / max(distance(own, start), 1e-9))
    return apart


def apart_of_draws(alone: Sequence[Trained], several: Sequence[Trained]) -> float:
    """How far the ranks of a plan are from the mean of other draws, relative to other draws."""
    own = [each.weights["end-0"] for each in alone]
    usual = mean(
        distance(weights, averaged([*own[:number], *own[number + 1 :]]))
        for number, weights in enumerate(own)
    )
    # A mean of as many is as far from its centre.
    centre = averaged(own[1:])
    ends = [w for each in several for name, w in each.weights.items() if name.startswith("end")]
    return mean(distance(weights, centre) for weights in ends) / usual


def distance(own: Sequence[Any], other: Sequence[Any]) -> float:
    """The norm of the difference of two sets of weights."""
    squares = sum(float((a - b).double().pow(2).sum()) for a, b in zip(own, other, strict=True))
    return float(squares**0.5)


def averaged(weights: Sequence[Sequence[Any]]) -> list[Any]:
    """The mean of sets of weights."""
    return [sum(tensors) / len(tensors) for tensors in zip(*weights, strict=True)]


def outcome(whole: Whole, facts: HostFacts) -> Outcome:
    """Ask, accept or refuse, and train to the end."""
    knob, value = whole.lever
    name = whole.name.replace(" ", "_") + ".py"
    found = Outcome(name=whole.name, lever=f"{knob}={value}", other=whole.other)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "job").mkdir()
        script = place / "job" / name
        script.write_text(whole.source, encoding="utf-8")
        with in_folder(place / "job"):
            try:
                refused, plan, workload = accepted(whole, script.relative_to(place / "job"), facts)
            except TrialError as error:
                return replace(found, failed=str(error))
            figures = truth(whole, script, plan, workload, facts)
            found = replace(found, refused=refused, **figures)
            if FORKS and found.verdict == "WRONGLY ACCEPTED":
                # A fork has no rank.py, which compares the ranks of an emitted launch.
                found = replace(found, **truth(whole, script, plan, workload, facts, torchrun=True))
        return found


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work in a folder for a while."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def row(found: Outcome) -> str:
    """A row of the table."""
    apart = "–" if found.apart is None else f"{found.apart:.1e}"
    metric = "–" if found.metric is None else f"{found.metric:.0e}"
    why = found.failed or found.refused or "accepted"
    cells = (found.name, found.lever, why, apart, metric, found.end, found.verdict)
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table; 1 if a plan was wrongly accepted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scripts whose name holds this word")
    parser.add_argument("--part", default="0/1", help="every n-th script: 0/2, 1/2")
    parser.add_argument("-o", "--output", help="the table as Markdown")
    parser.add_argument("--json", help="the outcomes as JSON; those that it has are not made anew")
    parser.add_argument("--forks", action="store_true", help="train in forks, without torchrun")
    options = parser.parse_args()
    if options.forks:
        global FORKS
        FORKS = True
        for name in ("torch", "numpy", "accelerate", "transformers.trainer"):
            importlib.import_module(name)
    number, parts = map(int, options.part.split("/"))
    chosen = [w for w in WHOLE if options.only in w.name][number::parts]
    kept = Path(options.json) if options.json else None
    known = {}
    if kept is not None and kept.exists():
        known = {each["name"]: Outcome(**each) for each in json.loads(kept.read_text())}
    facts = probe()
    lines = [
        "| script | plan | checked | apart | metric | launch | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    found = []
    for whole in chosen:
        since = time.monotonic()
        found.append(known.get(whole.name) or outcome(whole, facts))
        lines.append(row(found[-1]))
        print(f"{lines[-1]} {time.monotonic() - since:.0f} s", flush=True)
        if kept is not None:
            kept.write_text(json.dumps([asdict(each) for each in found], indent=1))
    counts = Counter(each.verdict for each in found)
    end = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(end)
    if options.output:
        Path(options.output).write_text("\n".join([*lines, "", end, ""]), encoding="utf-8")
    return 1 if counts["WRONGLY ACCEPTED"] else 0


if __name__ == "__main__":
    sys.exit(main())

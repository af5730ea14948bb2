"""What users write: every line must be accepted by mypy --strict and by pyright."""

from __future__ import annotations

from collections.abc import Iterator

import cputune
from cputune import Plan, Result, Step, Workload


class Simulated:
    """A runner of one's own: nothing but ``steps``."""

    def steps(self, plan: Plan) -> Iterator[Step]:
        while True:
            yield Step(seconds=1 / plan.threads_per_process, samples=8)


def show(event: cputune.Event) -> None:
    if isinstance(event, cputune.TrialEnded):
        rate = event.trial.samples_per_second
        print(event.trial.number, event.trial.state, rate.centre if rate else event.trial.reason)
    elif isinstance(event, cputune.StepTaken):
        print(event.seconds + 1.0)


def whole_line() -> tuple[str, ...]:
    host = cputune.RecordedHost("machine")
    facts: cputune.HostFacts = cputune.probe(host=host)
    report: cputune.Diagnosis = cputune.diagnose(facts)
    worst = [f.code for f in report.findings if f.severity is cputune.Severity.ERROR]
    job = Workload.from_recipe("bert-base-squad", batch_per_rank=4)
    job = Workload.script(["run_qa.py", "--do_train"])
    samples: int | None = job.global_batch_size
    space: cputune.SearchSpace = cputune.search_space(facts, job, fix={"precision": "fp32"})
    plans: list[Plan] = [plan for plan in space.plans() if plan.precision == "fp32"]
    try:
        result = cputune.tune(job, facts=facts, budget=5, runner=Simulated(), on_event=show)
    except cputune.CputuneError as error:
        return (str(error), error.hint or "", str(error.exit_code))
    result.save("cputune.json", force=True)
    result = Result.load("cputune.json")
    gain: float | None = None if result.speedup is None else result.speedup.low
    why: str | None = result.not_compared
    node = cputune.Node(name="node1", slots=2)
    files = cputune.emit(result, "mpirun", nodes=1, hosts=(node,))
    seen = cputune.verify(["launch/"], steps=12, on_event=print)
    states: list[str] = [verification.state for verification in seen]
    return (
        *worst,
        *states,
        *(file.name for file in files),
        str(gain),
        str(why),
        str(samples),
        str(plans),
    )


def a_plan() -> Plan:
    return Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), precision="bf16")

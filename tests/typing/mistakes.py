"""What users get wrong: every line that says so must be refused by mypy --strict and pyright."""

from __future__ import annotations

import cputune
from cputune import Plan, Result, Step, Workload


class NoRunner:
    def step(self, plan: Plan) -> Step:
        return Step(seconds=1.0, samples=8)


job = Workload.from_recipe("bert-base-squad")
cputune.tune()  # error: a job is missing
cputune.tune(3)  # error: a number is no job
cputune.tune(job, bugdet=20)  # error: no such parameter
cputune.tune(job, runner=NoRunner())  # error: it has no steps
cputune.tune(job, on_event=lambda: None)  # error: it takes no event
cputune.emit("mpirun")  # error: a result is missing
cputune.search_space(job)  # error: facts are missing
cputune.verify("launch/", step=3)  # error: no such parameter
Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), precision="int8")  # error: int8
Result.load("cputune.json").trials[0].status  # error: it is called state  # noqa: B018
Result.load("cputune.json").best.plan.threads_per_process = 4  # error: records are frozen
cputune.Mystery  # error: nothing is called so  # noqa: B018
job.framework = "trainer"  # error: records are frozen

import math
from dataclasses import replace

import pytest
from golden_texts import Golden
from rows import every_row

from cputune import Plan, Step
from cputune.inside.messages import NOT_HEARD
from cputune.ranks.job import Gather, Launched, Rank
from cputune.records.result import Throughput
from cputune.verifier import scripts
from cputune.verifier.checks import (
    median_interval,
    outcomes,
    step_rates,
    throughput,
    throughput_check,
)
from cputune.verifier.records import Expected, Ratio
from cputune.verifier.scripts import measured

PLAN = Plan(processes_per_node=2, threads_per_process=1, precision="bf16", cpus=((0,), (1,)))


def steps(count=12, seconds=0.5, samples=4, loss=5.0, **more):
    return tuple(Step(seconds=seconds, samples=samples, loss=loss, **more) for _ in range(count))


def rank(number, made=None, **state):
    seen = {"world_size": 2, "threads": 1, "affinity": [number], "dtype": "bfloat16"}
    seen |= {"backend": "gloo", "allocator": "default", "ipex": False, "environment": {}, **state}
    return Rank(number=number, state=seen, steps=list(steps() if made is None else made))


def whole(*ranks):
    """The steps of the job, from those of its ranks."""
    gather = Gather(len(ranks))
    told = [(n, r.number, step) for r in ranks for n, step in enumerate(r.steps)]
    found = [gather.add(number, n, step) for n, number, step in sorted(told, key=lambda t: t[0])]
    return tuple(step for step in found if step is not None)


def launched(*ranks, **more):
    fields = {"returncode": None, "enough": True, "timed_out": False, "seconds": 9.0, "output": ""}
    return Launched(ranks=ranks, steps=whole(*ranks), **{**fields, **more})


def told(seen, plan=PLAN, **expected):
    return list(outcomes(seen, Expected(plan=plan, **expected), "mpirun"))


def states(seen, plan=PLAN, **expected):
    return {check.name: check.state for check in told(seen, plan, **expected)}


def test_a_launch_whose_ranks_could_not_report_is_not_checked():
    seen = launched(enough=False, returncode=NOT_HEARD, output="srun: error: no step")
    (check,) = told(seen)
    assert (check.name, check.state) == ("launch", "not checked")
    assert "srun --jobid" in check.remedy
    assert [row.seen for row in check.evidence] == ["srun: error: no step"]


@every_row(
    ("state", "failed"),
    [
        ({"world_size": 1}, "world size"),
        ({"threads": 2}, "threads"),
        ({"affinity": [0, 1]}, "affinity"),
        ({"dtype": "float32"}, "precision"),
        ({"backend": "mpi"}, "backend"),
    ],
)
def test_one_rank_that_differs_fails_that_check_alone(state, failed):
    found = states(launched(rank(0), rank(1, **state)))
    assert [name for name, value in found.items() if value == "failed"] == [failed]


@pytest.mark.parametrize(
    ("cpus", "state"), [(([4], [6]), "passed"), (([4, 5], [5]), "failed"), (([], [6]), "failed")]
)
def test_cpus_that_a_scheduler_deals_out_are_each_ranks_own(cpus, state):
    seen = launched(*(rank(number, affinity=own) for number, own in enumerate(cpus)))
    checks = outcomes(seen, Expected(plan=PLAN), "sbatch", dealt_out=True)
    assert {check.name: check.state for check in checks}["affinity"] == state


def test_workers_that_are_not_known_are_not_passed_in_silence():
    plan = replace(PLAN, backend="ccl", ccl_workers=1, ccl_cpus=((2,), (3,)))
    shown = {k: v for k, v in plan.environment().items() if k.startswith("CCL_")}
    unknown = {"ccl_workers": None, "ccl_workers_unknown": "the rank has one CPU"}
    ranks = (rank(n, backend="ccl", environment=shown, **unknown) for n in range(2))
    workers = next(c for c in told(launched(*ranks), plan) if c.name == "oneCCL workers")
    said = "rank 0: not known: the rank has one CPU"
    assert (workers.state, workers.summary) == ("not checked", said)


def test_a_preload_that_was_not_mapped_fails():
    plan = replace(PLAN, allocator="tcmalloc", preload=("/usr/lib/libtcmalloc.so.4",))
    good = rank(0, mapped=["/usr/lib/libtcmalloc.so.4"], allocator="tcmalloc")
    assert states(launched(good, rank(1, mapped=[])), plan)["preload"] == "failed"


def test_ranks_that_take_another_batch_fail():
    assert states(launched(rank(0), rank(1)), global_batch_size=16)["global batch"] == "failed"


def test_of_a_trainer_its_arguments_count_not_what_it_makes_of_a_sample():
    pairs = {"framework": "trainer", "batch": 2, "accumulation": 2}
    both = launched(*(rank(number, steps(samples=8), **pairs) for number in (0, 1)))
    assert states(both, global_batch_size=8)["global batch"] == "passed"


@every_row(
    ("losses", "state"),
    [
        ((5.0, math.nan), "failed"),
        ((5.0, math.inf), "failed"),
        ((2.0, 400.0), "failed"),
        ((0.01, 0.3), "passed"),  # a small loss may rise: it is one of few samples
    ],
)
def test_a_loss_that_runs_away_fails(losses, state):
    made = tuple(Step(seconds=1, samples=4, loss=loss) for loss in losses)
    assert states(launched(rank(0), rank(1, made)))["loss"] == state


def test_a_script_without_a_loss_is_not_checked_for_it():
    made = steps(loss=None)
    assert states(launched(rank(0, made), rank(1, made)))["loss"] == "not checked"


def test_a_script_that_says_what_it_misses_is_not_checked(golden: Golden):
    said = "note\nerror: there is no mpirun\nhint: install an MPI\n"
    (check,) = told(launched(enough=False, returncode=3, output=said))
    assert check.state == "not checked"
    golden(check.remedy)


def test_a_launch_far_below_the_tuned_figure_fails():
    slow = throughput(whole(rank(0), rank(1)), Throughput(centre=40.0, low=39.0, high=41.0))
    assert throughput_check(slow, "mpirun").state == "failed"
    same = throughput(whole(rank(0), rank(1)), Throughput(centre=16.0, low=15.9, high=16.1))
    assert throughput_check(same, "mpirun").state == "passed"
    assert throughput_check(None, "mpirun").state == "not checked"


def test_a_slow_launch_on_a_busy_machine_is_not_judged():
    made = steps(delayed_seconds=0.4)
    slow = throughput(whole(rank(0, made), rank(1)), Throughput(centre=40.0, low=39.0, high=41.0))
    check = throughput_check(slow, "mpirun")
    assert check.state == "not checked"
    assert check.remedy


def test_the_interval_of_a_median_has_the_ranks_of_the_tables():
    """Conover, Practical Nonparametric Statistics, the sign test's interval of 95 %."""
    assert median_interval(range(5)) == (0, 4)


def test_a_slow_launch_with_a_wide_interval_is_not_judged():
    made = tuple(Step(seconds=0.3 + n % 5, samples=4, loss=5.0) for n in range(12))
    tuned = Throughput(centre=16.0, low=15.0, high=17.0)
    ratio = throughput(whole(rank(0, made), rank(1, made)), tuned)
    assert ratio.ratio < 0.9 < ratio.high
    assert throughput_check(ratio, "mpirun").state == "not checked"


@pytest.fixture
def run(monkeypatch):
    """Judge a launch that takes so long for a step at its first start, its second, and so on."""

    def judged(*seconds):
        left = list(seconds)

        def observe(*_, **__):
            made = steps(seconds=left.pop(0))
            return launched(rank(0, made), rank(1, made))

        monkeypatch.setattr(scripts, "observe", observe)
        answer = list(measured([], TUNED, "mpirun", interpreter=None))
        ratio = next((said for said in answer if isinstance(said, Ratio)), None)
        return [said for said in answer if said is not ratio], ratio, len(seconds) - len(left)

    return judged


TUNED = Expected(plan=PLAN, samples_per_second=Throughput(centre=16.0, low=15.0, high=17.0))


def test_a_launch_that_is_slow_twice_fails_and_is_not_started_again(run):
    checks, _, starts = run(2.0, 2.1, 0.5)
    assert starts == 2
    assert [check.name for check in checks if check.state == "failed"] == ["throughput"]


def test_a_launch_that_is_fast_enough_is_started_once(run):
    checks, _, starts = run(0.52)
    assert checks[-1].state == "passed"
    assert starts == 1


SHOWN = {"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "bf16"}
SHOWN |= {"ACCELERATE_USE_CPU": "true"}
PROMISED = {**SHOWN, "LD_PRELOAD": "/lib/x.so"}


def check(name, state, expected, python=None):
    """The one check of this name, where the second rank shows this state."""
    good = {"environment": SHOWN, "sequence_length": 384, "executable": "/p/bin/py"}
    ranks = launched(rank(0, **good), rank(1, **{**good, **state}))
    found = outcomes(ranks, Expected(plan=PLAN, **expected), "mpirun", interpreter=python)
    return next((one for one in found if one.name == name), None)


@every_row(
    ("shown", "state", "said"),
    [
        ({**SHOWN, "KMP_INIT_AT_FORK": "FALSE"}, "passed", "bf16"),
        ({"OMP_NUM_THREADS": "1"}, "failed", "no ACCELERATE_MIXED_PRECISION"),
        ({**SHOWN, "OMP_PROC_BIND": "close"}, "failed", "the plan has no OMP_PROC_BIND"),
    ],
)
def test_the_whole_environment_is_held(shown, state, said):
    seen = check("environment", {"environment": shown}, {"environment": PROMISED})
    assert (seen.state, said in seen.summary) == (state, True), seen.summary


def test_samples_of_another_length_fail():
    expected = {"sequence_length": 384}
    assert check("workload", {}, expected).state == "passed"
    assert check("workload", {"sequence_length": 38}, expected).state == "failed"


def test_the_interpreter_that_ran_is_named():
    assert "/p/bin/py" in check("interpreter", {}, {}).summary
    assert check("interpreter", {}, {}, python="/p/bin/py").state == "passed"
    other = check("interpreter", {"executable": "/q/bin/py"}, {}, python="/p/bin/py")
    assert (other.state, "/q/bin/py" in other.summary) == ("failed", True)


def test_steps_that_waited_for_a_cpu_do_not_count():
    made = steps(8) + steps(4, seconds=5.0, delayed_seconds=4.0)
    assert step_rates(whole(rank(0, made), rank(1, made))) == ([16.0] * 6, 4)


def test_a_launch_that_is_the_plan_passes():
    found = states(launched(rank(0), rank(1)), global_batch_size=8)
    assert set(found.values()) == {"passed"}
    assert set(found) >= {"launch", "world size", "threads", "affinity", "precision", "backend"}


def test_a_steady_launch_is_as_sure_as_the_tuned_figure():
    ratio = throughput(whole(rank(0), rank(1)), Throughput(centre=16.0, low=14.0, high=20.0))
    assert ratio.ratio == pytest.approx(1.0)
    assert (ratio.low, ratio.high) == pytest.approx((16 / 20, 16 / 14))

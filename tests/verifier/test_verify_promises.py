"""What a file promises beside its plan: variables, workload, interpreter."""

import pytest
from test_verify_checks import PLAN, launched, rank

from cputune.host import Host
from cputune.verifier.checks import outcomes
from cputune.verifier.records import Artefact, Expected
from cputune.verifier.scripts import interpreter

SHOWN = {
    "OMP_NUM_THREADS": "1",
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_USE_CPU": "true",
}
PROMISED = {**SHOWN, "LD_PRELOAD": "/lib/x.so"}


def check(name, state, expected, python=None):
    """The one check of this name, where the second rank shows this state."""
    good = {"environment": SHOWN, "sequence_length": 384, "executable": "/p/bin/py"}
    ranks = launched(rank(0, **good), rank(1, **{**good, **state}))
    found = outcomes(ranks, expected, PLAN, "mpirun", interpreter=python)
    return next((one for one in found if one.name == name), None)


@pytest.mark.parametrize(
    ("shown", "state", "said"),
    [
        (SHOWN, "passed", "OMP_NUM_THREADS=1"),
        ({**SHOWN, "KMP_INIT_AT_FORK": "FALSE"}, "passed", "bf16"),
        ({**SHOWN, "ACCELERATE_USE_CPU": "True"}, "passed", "ACCELERATE_USE_CPU=true"),
        ({**SHOWN, "ACCELERATE_USE_CPU": "False"}, "failed", "ACCELERATE_USE_CPU=false"),
        ({"OMP_NUM_THREADS": "1"}, "failed", "no ACCELERATE_MIXED_PRECISION"),
        ({**SHOWN, "OMP_NUM_THREADS": "2"}, "failed", "OMP_NUM_THREADS=2"),
        ({**SHOWN, "OMP_PROC_BIND": "close"}, "failed", "the plan has no OMP_PROC_BIND"),
        ({**SHOWN, "KMP_AFFINITY": "compact"}, "failed", "KMP_AFFINITY=compact"),
        ({**SHOWN, "MALLOC_CONF": "x"}, "failed", "MALLOC_CONF=x"),
    ],
)
def test_the_whole_environment_is_held(shown, state, said):
    seen = check("environment", {"environment": shown}, Expected(environment=PROMISED))
    assert (seen.state, said in seen.summary) == (state, True), seen.summary


def test_samples_of_another_length_fail():
    expected = Expected(sequence_length=384)
    assert check("workload", {}, expected).state == "passed"
    assert check("workload", {"sequence_length": 38}, expected).state == "failed"


def test_what_was_not_promised_is_not_held():
    assert check("workload", {}, Expected()) is None
    assert check("environment", {}, Expected()) is None


def test_the_interpreter_that_ran_is_named():
    assert "/p/bin/py" in check("interpreter", {}, Expected()).summary
    assert check("interpreter", {}, Expected(), python="/p/bin/py").state == "passed"
    other = check("interpreter", {"executable": "/q/bin/py"}, Expected(), python="/p/bin/py")
    assert (other.state, "/q/bin/py" in other.summary) == ("failed", True)


class FakeHost(Host):
    """A machine with some interpreters."""

    def __init__(self, *programs):
        self.programs = programs

    def which(self, program):
        return next((p for p in self.programs if p in (program, f"/usr/bin/{program}")), None)


@pytest.mark.parametrize(
    ("environment", "programs", "chosen"),
    [
        ({}, ("/t/python", "/usr/bin/python3"), "/t/python"),
        ({"PYTHON": "/mine"}, ("/t/python", "/mine"), "/mine"),
        ({}, ("/usr/bin/python3",), None),
    ],
)
def test_it_is_the_one_that_the_script_takes(environment, programs, chosen, tmp_path):
    text = "#!/bin/bash\ntuned=/t/python\n"
    script = Artefact(path=tmp_path / "a.sh", format="mpirun", text=text)
    python, gone = interpreter(script, environment, FakeHost(*programs))
    assert python == chosen
    assert [outcome.state for outcome in gone] == ["not checked"] * (chosen is None)

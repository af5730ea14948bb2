"""``emit --format command``: the launch as a person types it, run word for word."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from emit_machines import one_socket, planned
from golden_texts import Golden
from in_process import ran

from cputune import HostFacts, Result, UsageError, Workload, emit
from cputune.emitters import FORMATS, PRINTED_FORMATS
from cputune.host import LiveHost

TELL = """
import json, os, sys
names = ("OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION", "RANK", "WORLD_SIZE", "KMP_AFFINITY")
told = {name: os.environ.get(name) for name in names}
told.update(cpus=sorted(os.sched_getaffinity(0)), words=sys.argv)
print("SEEN " + json.dumps(told), flush=True)
"""
"""A script that trains nothing; it tells what it was given."""

ONE = {"processes_per_node": 1, "threads_per_process": 2}


def tuned(workload: Workload, **changed: object) -> Result:
    """A result whose best plan differs from that of a small machine in these fields."""
    return replace(planned(one_socket().result, **changed), workload=workload, confirmation=())


def script(framework: str, **more: object) -> Workload:
    job = Workload.script(["train.py", "--output_dir", "my runs/$USER"], global_batch_size=8)
    return replace(job, framework=framework, **more)  # type: ignore[arg-type]


def written(result: Result, *, facts: HostFacts | None = None, python: str | None = None) -> str:
    (file,) = emit(result, "command", facts=facts, python=python, host=LiveHost())
    return file.text


MADE = "transformers.TrainingArguments('out')"
PARSED = "HfArgumentParser((Own, transformers.TrainingArguments))"


@pytest.mark.parametrize(
    ("code", "precision", "carried"),
    [
        (MADE, "fp32", False),
        (MADE, "bf16", True),
        (f"import trl; {MADE}", "fp32", True),
        ("TrainingArguments('out', bf16=True)", "fp32", True),
        (PARSED, "bf16", False),
        ("Accelerator()", "fp32", False),
        ("Accelerator()", "bf16", False),
        ("Accelerator(mixed_precision=args.mixed_precision)", "bf16", True),
    ],
)
@pytest.mark.parametrize("format", ["torchrun", "mpirun", "accelerate", "slurm"])
@pytest.mark.usefixtures("workdir")
def test_a_script_that_was_never_run_is_carried_only_if_nothing_else_says_the_plan(
    code: str, precision: str, carried: bool, format: str
) -> None:
    Path("train.py").write_text(code)
    plan = {"cpus": ((0, 1),), "precision": precision, "settings": {}, **ONE}
    job = Workload.script(["train.py"])
    facts = one_socket().facts
    result = None if code == PARSED else tuned(job, **plan)
    files = emit(result, format, facts=facts, workload=job, host=LiveHost())
    assert ("apply_plan.py" in [file.name for file in files]) == carried
    assert any("set in the script's own objects" in note for note in files[0].notes) == carried
    if code == PARSED:
        assert "--use_cpu" in files[0].text
        assert "--bf16 True" in files[0].text


def test_without_a_result_a_plan_that_needs_files_cannot_be_one_line(golden: Golden) -> None:
    with golden.raises(UsageError):
        emit(None, "command", facts=one_socket().facts)


def test_it_is_printed_and_cannot_be_verified() -> None:
    assert "command" in PRINTED_FORMATS
    assert "command" not in FORMATS


def run(text: str, place: Path, **variables: str) -> list[dict[str, object]]:
    (place / "train.py").write_text(TELL)
    done = ran(["bash", "-c", text], cwd=place, env=variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(x.partition("SEEN ")[2]) for x in done.stdout.splitlines() if "SEEN " in x]


def test_what_this_shell_has_and_the_plan_has_not_is_unset(tmp_path: Path) -> None:
    case = one_socket()
    facts = replace(case.facts, environment={"KMP_AFFINITY": "compact", "HOME": "/root"})
    job = script("trainer", parses_arguments=True)
    text = written(tuned(job, cpus=((0,),), **ONE), facts=facts, python=sys.executable)
    (seen,) = run(text, tmp_path, KMP_AFFINITY="compact")
    assert seen["KMP_AFFINITY"] is None
    assert "HOME" not in text


@pytest.mark.torch
def test_the_line_of_several_ranks_binds_each(tmp_path: Path) -> None:
    two = {"cpus": ((0,), (1,)), "processes_per_node": 2, "threads_per_process": 1}
    text = written(tuned(script("pytorch"), **two), python=sys.executable)
    assert text.count("\n") <= 4
    seen = sorted(run(text, tmp_path), key=lambda one: str(one["RANK"]))
    assert [one["RANK"] for one in seen] == ["0", "1"]
    assert [one["cpus"] for one in seen] == [[0], [1]]
    assert {one["WORLD_SIZE"] for one in seen} == {"2"}


@pytest.mark.usefixtures("workdir")
def test_several_ranks_of_a_script_that_was_never_run_are_a_torchrun_line(golden: Golden) -> None:
    job = Workload.script(["train.py", "--bf16", "--ddp_backend", "ccl"])
    (file,) = emit(None, "command", facts=one_socket().facts, workload=job, ranks_per_node=2)
    words = shlex.split(file.text.replace("\\\n", ""))
    assert words[words.index("--nproc-per-node") + 1] == "2"
    at = words.index("cputune.apply")
    applied = json.loads(words[at + 1])
    assert (applied["several"], applied["cpus"], applied["guard"]) == (True, "0-3/4-7", True)
    assert applied["set"]["arguments"]["ddp_backend"] == "gloo"
    assert words[at + 2 : at + 6] == ["--launcher", "torch", "--", "train.py"]
    golden(file.notes)


def test_ranks_that_were_not_tuned_are_named_as_not_measured() -> None:
    case = one_socket()
    text = emit(case.result, "torchrun", facts=case.facts, ranks_per_node=4)[0].text
    assert "4 × 2 threads" in text
    assert "--nproc-per-node 4" in text
    assert "1.57 times" not in text
    assert "not measured" in text.replace("\n# ", " ")
    with pytest.raises(UsageError, match="cannot be placed"):
        emit(case.result, "torchrun", facts=case.facts, ranks_per_node=40)

"""``emit --like FILE``: the user's own launch, with the words changed that the plan changes."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from emit_machines import one_socket
from golden_texts import Golden
from in_process import ran
from report.result_cases import with_best
from rows import every_row

from cputune import Result, UsageError, Workload, verify
from cputune.cli.inputs import launched
from cputune.emitters.format import Emission
from cputune.emitters.like import Rewritten, launch_in, like
from cputune.emitters.promise import promise_in
from cputune.host import LiveHost
from cputune.launch.edit import unified
from cputune.launch.launch import Launch
from cputune.records.claims import Speedup, machine_name
from cputune.records.result import Worth

MACHINE = machine_name(one_socket().result.host)

WORTHS = (
    Worth(knob="layout", value="1 rank × 4", speedup=Speedup(ratio=1.2, low=1.1, high=1.3)),
    Worth(knob="precision", value="bf16", speedup=Speedup(ratio=1.3, low=1.2, high=1.4)),
    Worth(knob="allocator", value="tcmalloc", speedup=Speedup(ratio=1.15, low=1.1, high=1.2)),
)
SCRIPT = """\
#!/bin/bash
# what I always start
source venv/bin/activate
python run_qa.py \\
  --output_dir out \\
  --learning_rate 3e-5 | tee log
"""


def tuned(ranks: int = 1, framework: str = "trainer") -> Result:
    case = one_socket().result
    cpus = ((0, 1, 2, 3), (4, 5, 6, 7))[:ranks]
    plan = replace(case.best.plan, processes_per_node=ranks, cpus=cpus, threads_per_process=4)
    words = ["run_qa.py", "--output_dir", "out", "--learning_rate", "3e-5"]
    job = Workload.script(words, global_batch_size=8)
    job = replace(job, framework=framework, parses_arguments=framework == "trainer")
    return replace(with_best(case, plan), workload=job, worth=WORTHS)


def rewritten(text: str, result: Result | None = None, name: str = "run.sh") -> Rewritten:
    result = tuned() if result is None else result
    launch = launch_in(text, name)
    workload = result.workload
    if isinstance(launch, Launch):
        typed = Workload.script(list(launch.argv))
        workload = replace(workload, argv=typed.argv)
    asked = Emission(facts=one_socket().facts, workload=workload, host=LiveHost())
    return like(text, name, result, asked)


def changed(text: str, after: str) -> list[str]:
    diff = unified("run.sh", text, after).splitlines()
    return [line for line in diff if line.startswith("+") and not line.startswith("+++")]


@pytest.mark.parametrize("own", ['"$@"', "--seed $SEED", "--seed 1"])
def test_the_words_of_the_file_are_promised_if_no_shell_fills_them(own: str) -> None:
    after = rewritten(f"python run_qa.py --no_cuda {own}\n").text
    launch, trained = launch_in(after, "run.sh"), promise_in(after).trained
    assert "--no_cuda" not in launch.argv
    assert trained.words == (launch.argv if own == "--seed 1" else ())


LAUNCHES = (
    # what the user has, and what starts the training then
    ("numactl -C 0-31 -m 0 python run_qa.py --bf16 False", "taskset -c 0-3 python run_qa.py"),
    ("ipexrun --ncores-per-instance 32 run_qa.py --no_cuda", "taskset -c 0-3 python run_qa.py"),
    ("python -m pkg.run_qa --use_cpu", "taskset -c 0-3 python -m pkg.run_qa"),
)


@every_row(("line", "started"), LAUNCHES)
def test_the_launcher_becomes_that_of_the_plan(line: str, started: str) -> None:
    before = "export OMP_NUM_THREADS=64 KMP_AFFINITY=granularity=fine,compact,1,0"
    after = rewritten(f'{before}\n{line} "$@"\n').text
    assert after.count('"$@"') == 1
    assert started in after
    assert "OMP_NUM_THREADS=4" in after
    assert "KMP_AFFINITY" not in after
    assert "compact" not in after
    launch = launch_in(after, "run.sh")
    assert launch.switched_on("--use_cpu")
    assert launch.switched_on("--bf16")
    assert launch.argument("--no_cuda") is None


def test_what_a_plan_sets_reaches_a_container() -> None:
    line = "docker run -v $PWD:/w -w /w image python run_qa.py"
    after = rewritten(f"export OMP_NUM_THREADS=64\n{line}\n")
    launch = launch_in(after.text, "run.sh")
    assert launch is not None
    assert launch.environment["OMP_NUM_THREADS"] == "4"
    assert "LD_PRELOAD" not in launch.environment
    assert any("name the image's own" in note for note in after.notes)


def test_several_ranks_are_started_by_torchrun_and_bound_one_by_one(golden: Golden) -> None:
    result = tuned(ranks=2)
    after = rewritten("python run_qa.py --output_dir out\n", result)
    line = next(one for one in after.text.splitlines() if "torchrun " in one and one[0] != "#")
    words = shlex.split(line)
    assert words[: words.index("rank.py")][-1] == "2"
    golden(line)
    assert [file.name for file in after.beside] == ["rank.py", "apply_plan.py"]


def test_a_batch_script_asks_for_the_cpus_of_the_plan(golden: Golden) -> None:
    text = "#!/bin/bash\n#SBATCH --cpus-per-task=64\nsrun python run_qa.py --output_dir out\n"
    after = rewritten(text).text
    golden(after)
    assert "taskset" not in after, "Slurm gives the CPUs"


def test_an_option_of_the_launcher_that_the_plan_does_not_have_is_named() -> None:
    text = "torchrun --nproc_per_node=2 --master_port=29511 --max_restarts 3 run_qa.py --no_cuda\n"
    notes = rewritten(text).notes
    left_out = [note.partition(" is left out")[0] for note in notes]
    assert left_out == ["--master_port=29511", "--max_restarts 3"]


JOB = """\
kind: PyTorchJob
apiVersion: kubeflow.org/v1
metadata: {name: bert}
spec:
  nprocPerNode: "8"   # of the nodes that we had
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          containers:
            - name: pytorch
              command:
                - torchrun
                - run_qa.py
                - --no_cuda
              env:
                - name: OMP_NUM_THREADS
                  value: "64"
"""


def test_a_job_of_a_cluster_gets_ranks_variables_and_flags(tmp_path: Path) -> None:
    done = rewritten(JOB, name="job.yaml")
    assert '  nprocPerNode: "1"   # of the nodes that we had\n' in done.text
    assert 'name: OMP_NUM_THREADS\n                  value: "4"\n' in done.text
    assert "                - --use_cpu\n" in done.text
    assert "                - --bf16\n" in done.text
    assert any("LD_PRELOAD" in note for note in done.notes)
    assert promise_in(done.text).format == "pytorchjob"
    # verify holds the document against its last line, with the plan of a result too.
    path, result = tmp_path / "job.yaml", tmp_path / "cputune.json"
    tuned().save(result)
    other = done.text.replace("- --bf16", "- --fp16")
    for text, state in ((done.text, "passed"), (other, "failed")):
        path.write_text(text, encoding="utf-8")
        for plan in (None, result):
            (verdict,) = verify([path], result=plan, run=False)
            (seen,) = [check for check in verdict.checks if check.name == "plan"]
            assert seen.state == state, seen


def test_a_script_of_the_image_is_taken_for_the_tuned_one(workdir: Path) -> None:
    job = launched(tuned(), ("/app/run_qa.py", "--output_dir", "/data"))
    assert (job.framework, job.argv[0]) == ("trainer", "/app/run_qa.py")
    assert launched(tuned(), ("/app/train.py",)).framework is None
    Path("run_qa.py").write_text("", encoding="utf-8")  # another one, which is here
    assert launched(tuned(), (f"{workdir}/run_qa.py",)).framework is None


def test_a_configuration_of_accelerate_holds_ranks_and_precision(golden: Golden) -> None:
    text = "compute_environment: LOCAL_MACHINE\nmixed_precision: 'no'  # mine\nnum_processes: 1"
    done = rewritten(text, name="config.yaml")
    golden(done.text)
    golden(done.notes[0])


def test_a_batch_script_starts_one_task_with_the_ranks_of_the_plan(golden: Golden) -> None:
    head = "#!/bin/bash\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=12\n"
    launch = "export WORLD_SIZE=4\nsrun torchrun --nproc_per_node=4 run_qa.py --output_dir out\n"
    after = rewritten(head + launch).text
    golden(after)
    assert "WORLD_SIZE" not in after
    two = rewritten(head + launch, tuned(2)).text
    golden(two)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.sh", "#SBATCH --nodes=2\nsrun torchrun --nproc_per_node=4 run_qa.py\n"),
        ("accelerate.yaml", "compute_environment: LOCAL_MACHINE\nnum_machines: 4\n"),
    ],
)
def test_a_launch_on_several_machines_is_no_launch_of_this_plan(
    name: str, text: str, golden: Golden
) -> None:
    with golden.raises(UsageError):
        rewritten(text, name=name)


@pytest.mark.parametrize("text", ["echo nothing\n", "kind: Pod\n"])
def test_what_starts_no_training_is_refused(text: str, golden: Golden) -> None:
    with golden.raises(UsageError):
        launch_in(text, "run.sh")


def test_the_diff_is_taken_by_patch_and_the_script_by_bash(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    done = rewritten((tmp_path / "run.sh").read_text())
    diff = unified("run.sh", (tmp_path / "run.sh").read_text(), done.text)
    subprocess.run(["patch", "-p0"], cwd=tmp_path, input=diff, text=True, check=True)
    assert (tmp_path / "run.sh").read_text() == done.text
    assert ran(["bash", "-n", str(tmp_path / "run.sh")]).returncode == 0


def test_each_change_has_its_measured_worth(golden: Golden) -> None:
    lines = rewritten(SCRIPT).text.splitlines()
    golden(lines[3])
    assert lines[4] == (
        "# cputune: 1.57 times the launch before (1.51 to 1.62), measured for run_qa.py on "
        f"{MACHINE}, on 2026-11-20: 1 rank × 4 ×1.20 (1.10 to 1.30), bf16 ×1.30 (1.20 to 1.40)"
    )

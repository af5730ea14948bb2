"""What people type after ``--``, and the script that is seen in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from golden_texts import Golden
from rows import every_row

from cputune import UsageError, Workload
from cputune.plans.training_command import read_typed
from cputune.text.documents import record_of


@every_row(
    ("typed", "argv"),
    [
        ("accelerate launch --some-new-switch train.py 3", "train.py 3"),
        ("mpiexec.hydra -np 2 train.py", "train.py"),
    ],
)
def test_the_script_is_seen_in_what_was_typed(typed: str, argv: str) -> None:
    job = Workload.script(typed.split())
    assert job.argv == tuple(argv.split())
    assert record_of(Workload, job.to_json()) == job


def test_a_console_script_is_a_python_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "finetune"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Workload.script(["finetune", "--a"]).argv == (str(program), "--a")


def test_trl_starts_a_script_of_its_own(workdir: Path, golden: Golden) -> None:
    """A package of its name: what ``trl sft`` hands to accelerate is started by the plan itself."""
    scripts = workdir / "trl" / "scripts"
    scripts.mkdir(parents=True)
    for name in ("sft.py", "chat.py"):
        (scripts / name).touch()
    typed = read_typed(["trl", "sft", "--model_name_or_path", "m"])
    assert typed.argv == ("-m", "trl.scripts.sft", "--model_name_or_path", "m")
    golden(typed.notes)
    with golden.raises(UsageError):
        read_typed(["trl", "chat"])
    for words in (["--num_processes", "2"], ["--accelerate_config=fsdp1"]):
        with pytest.raises(UsageError, match=f"trl sft {words[0].split('=')[0]} is for accelerate"):
            read_typed(["trl", "sft", *words])


@every_row(
    ("typed", "said"),
    [
        ("--epochs 3", "'--epochs' is an option, not a script"),
        ("OMP_NUM_THREADS=4 python train.py", "is a variable, not a script"),
        ("accelerate config", "only `accelerate launch` trains"),
        ("accelerate launch --use_fsdp train.py", "divides a model over accelerators"),
        ("torchrun --nnodes 2 train.py", "on this machine alone"),
        ("torchrun --nproc-per-node many train.py", "'many' is not a number of processes"),
        ("torchrun -m torch.distributed.run train.py", "starts another launcher"),
        ("mpiexec -f hosts.txt -n 4 python train.py", "on hosts.txt: .* on this machine alone"),
        ("mpirun -n 2 ./train", "`mpirun -n 2 ./train` contains no training script"),
        ("mpirun -n 1 python a.py : -n 1 python b.py", "several programs"),
        ("bash train.sh", "bash is not the training script"),
    ],
)
def test_what_is_no_training_command_is_refused(typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Workload.script(typed.split())
    assert caught.value.hint


@pytest.mark.parametrize("typed", ["./train.sh", "bash -e train.sh", "sbatch job"])
def test_of_a_shell_script_the_command_in_it_is_named(typed: str, workdir: Path) -> None:
    text = "#!/bin/bash\nsrun -n 2 python train.py --output_dir $OUT\n"
    for name in ("train.sh", "job"):
        Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="is a shell script") as caught:
        Workload.script(typed.split())
    assert str(caught.value.hint).endswith(": cputune tune -- python train.py --output_dir $OUT")


@pytest.mark.parametrize("name", ["taskset -c 0", "numactl -N 0"])
def test_what_confines_a_launch_may_be_before_cputune(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        Workload.script([*name.split(), "python", "train.py"])
    assert f"put {name.split()[0]} before cputune" in str(caught.value.hint)


def test_a_configuration_of_accelerate_is_read(tmp_path: Path, golden: Golden) -> None:
    config = tmp_path / "accelerate.yaml"
    words = ["accelerate", "launch", "--config_file", str(config), "train.py"]
    config.write_text("distributed_type: 'FSDP'\n")
    with golden.raises(UsageError):
        Workload.script(words)
    config.write_text("num_processes: 2\nmpirun_config:\n  mpirun_hostfile: hosts\n")
    assert Workload.script(words).launch_ranks == 2
    config.unlink()
    with golden.raises(UsageError):
        Workload.script(words)


@every_row(
    ("typed", "ranks"),
    [
        ("torchrun train.py", 1),
        ("torchrun --nproc-per-node 2 train.py", 2),
        ("mpirun -np 3 -ppn 3 python -m package.train", 3),
        ("mpirun -n 2 -host localhost python train.py", 2),
        ("accelerate launch --cpu --num_processes 2 train.py", 1),
        ("accelerate launch --num_processes 2 --mpirun_hostfile hosts train.py", 2),
    ],
)
def test_the_launch_as_typed_is_the_baseline(typed: str, ranks: int) -> None:
    job = Workload.script(typed.split())
    assert (job.launch, job.launch_ranks) == (tuple(typed.split()), ranks)

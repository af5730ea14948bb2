"""``doctor --check-file FILE --print-fix``: the fix as a diff that ``patch`` takes."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from rows import every_row
from stacks import TODAY, machine

from cputune import Severity
from cputune.doctor.checkfile import check_file, fix_text
from cputune.host.facts import Launcher
from cputune.launch.edit import Edit, apply, unified

HERE = Path(__file__).parent
GUIDES = sorted((HERE / "guides").iterdir())
FACTS = machine(TODAY, cores=16)
MENDED = (
    # a line of shell, and what becomes of it
    ("python run_qa.py --no_cuda --use_ipex --bf16", "python run_qa.py --use_cpu --bf16"),
    ('python run_qa.py --use_ipex "$@"', 'python run_qa.py "$@"'),
    ("python run_qa.py --logging_dir $LOGS --do_train", "python run_qa.py --do_train"),
    ("python run_qa.py --no-cuda True", "python run_qa.py --use_cpu True"),
    ("python run_qa.py --use_cpu --no_cuda", "python run_qa.py --use_cpu"),
    ("python run_qa.py --bf16 > log 2>&1", "python run_qa.py --use_cpu --bf16 > log 2>&1"),
    ("python run_qa.py --ddp_backend gloo", "python run_qa.py"),
    (
        "python run_qa.py --evaluation_strategy=epoch --group_by_length",
        "python run_qa.py --eval_strategy=epoch --train_sampling_strategy group_by_length",
    ),
    ("python run_qa.py --logging_dir logs --do_train", "python run_qa.py --do_train"),
    ("python run_qa.py --warmup_ratio 0.1", "python run_qa.py --warmup_steps 0.1"),
    ("ipexrun run_qa.py --a", "python run_qa.py --a"),
    ("ipexrun --ncores-per-instance 4 -m pkg.train", "OMP_NUM_THREADS=4 python -m pkg.train"),
    (
        "ipexrun --nnodes 2 --hostfile hosts --nprocs-per-node 2 train.py",
        "export MASTER_ADDR=10.0.0.1\nexport OMP_NUM_THREADS=8\nexport ACCELERATE_USE_CPU=true\n"
        "mpirun -f hosts -n 4 -ppn 2 python train.py",
    ),
    (
        "accelerate launch --cpu --ipex --num_processes 2 train.py",
        "export OMP_NUM_THREADS=8\nACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 train.py",
    ),
    (
        "docker run image torchrun --nproc_per_node 2 run_qa.py --use_cpu",
        "docker run -e OMP_NUM_THREADS=8 image torchrun --nproc_per_node 2 run_qa.py --use_cpu",
    ),
    (
        "export OMP_NUM_THREADS=8\ndocker run image python train.py",
        "export OMP_NUM_THREADS=8\ndocker run -e OMP_NUM_THREADS image python train.py",
    ),
    (
        "export KMP_AFFINITY=verbose,none LD_PRELOAD=/x/libiomp5.so\npython a.py",
        "export KMP_AFFINITY=none LD_PRELOAD=/x/libiomp5.so\npython a.py",
    ),
    (
        "python a.py --seed 1 &\npython a.py --seed 2 &\nwait",
        "export OMP_NUM_THREADS=8\npython a.py --seed 1 &\npython a.py --seed 2 &\nwait",
    ),
    ("export OMP_NUM_THREADS=32; python train.py", "export OMP_NUM_THREADS=16; python train.py"),
    ("srun ipexrun --ncores_per_instance 4 a.py", "srun env OMP_NUM_THREADS=4 python a.py"),
    (
        "X=1 python -m intel_extension_for_pytorch.cpu.launch --ncore_per_instance 4 a.py",
        "X=1 OMP_NUM_THREADS=4 python a.py",
    ),
    (
        "accelerate launch --cpu --mixed_precision fp16 a.py",
        "accelerate launch --cpu --mixed_precision no a.py",
    ),
    (
        'ARGS="--no_cuda --use_ipex"\npython run_qa.py $ARGS',
        'ARGS="--use_cpu"\npython run_qa.py $ARGS',
    ),
)


def cured(text, facts=FACTS, name="run.sh"):
    return fix_text(text, name, facts)[0]


@every_row(("text", "after"), MENDED)
def test_a_line_is_fixed_and_nothing_else(text, after):
    if "MASTER_ADDR" in after:
        text = "export MASTER_ADDR=10.0.0.1\n" + text
    assert cured(f"# as it was\n{text}\n") == f"# as it was\n{after}\n"


DIALECTS = (
    # this mpirun, the options of another, and its own
    ("openmpi5", "-n 4 -ppn 2 -genv A B", "-n 4 --map-by ppr:2:node -x A=B"),
    ("openmpi4", "-n 4 -f hosts -genv A=B -genvall", "-n 4 --hostfile hosts -x A=B"),
    ("mpich", "-n 4 -x A=B --allow-run-as-root", "-n 4 -genv A B"),
    ("mpich", "-n 4 --mca btl tcp -perhost 2", "-n 4 -ppn 2"),
    ("intelmpi", "-n 4 --npernode 2", "-n 4 -ppn 2"),
    ("openmpi5", "-n 2", "--bind-to none -n 2"),
)


@every_row(("dialect", "options", "own"), DIALECTS)
def test_options_of_another_mpirun_become_its_own(dialect, options, own):
    mpirun = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=dialect)
    facts = replace(FACTS, launchers=(mpirun,))
    before = "export MASTER_ADDR=10.0.0.1 OMP_NUM_THREADS=2\nmpirun {} python train.py --use_cpu\n"
    assert cured(before.format(options), facts) == before.format(own)


@every_row("path", GUIDES, ids=lambda path: path.name)
def test_what_the_guides_have_people_type_is_brought_up_to_date(path, tmp_path):
    text = path.read_text()
    assert check_file(text, path.name, FACTS)
    after, left = fix_text(text, path.name, FACTS)
    # What --deepspeed sets of batch and optimizer nobody but its user can carry over.
    errors = [one.code for one in left if one.severity is Severity.ERROR]
    assert errors == (["argument-sharded"] if path.name == "deepspeed.sh" else [])
    shutil.copy(path, tmp_path)
    diff = unified(path.name, text, after)
    subprocess.run(["patch", "-p0"], cwd=tmp_path, input=diff, text=True, check=True)
    assert (tmp_path / path.name).read_text() == after
    assert re.findall(r"(?:^|\s)#.*", after) == re.findall(r"(?:^|\s)#.*", text), "comments stay"
    gone = after.lower().replace("--deepspeed ds_config.json", "")
    assert not re.search(r"no_cuda|ipex|ccl|deepspeed", gone)
    assert "TRANSFORMERS_CACHE" not in after


def test_a_file_without_a_last_line_feed_is_patched(tmp_path):
    (tmp_path / "run.sh").write_text("python run_qa.py --no_cuda")
    diff = unified("run.sh", "python run_qa.py --no_cuda", "python run_qa.py --use_cpu")
    subprocess.run(["patch", "-p0"], cwd=tmp_path, input=diff, text=True, check=True)
    assert (tmp_path / "run.sh").read_text() == "python run_qa.py --use_cpu"


def test_of_edits_that_overlap_the_first_is_taken():
    edits = [Edit(start=0, end=3, text="x"), Edit(start=2, end=4, text="y")]
    assert apply("abcdef", edits) == "xdef"


def test_a_line_that_reaches_several_launches_is_written_once() -> None:
    head = "#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=8\nexport OMP_NUM_THREADS=8\n"
    line = "srun python run_qa.py --use_cpu\n"
    after, _ = fix_text(head + line + line, "job.sh", FACTS)
    assert after == f"{head}export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n{line}{line}"
    inside = f"first() {{\n  {line}}}\nfirst\n{line}"
    after, left = fix_text(head + inside, "job.sh", FACTS)
    assert after.count("export SRUN_CPUS_PER_TASK") == 2
    assert left == ()

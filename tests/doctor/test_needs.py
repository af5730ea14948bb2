"""What a launch needs of the machine: a compiler, memory, time, threads to itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from clean_machine import CLEAN, GIB, changed
from golden_texts import Golden
from rows import every_row

from cputune import Finding, HostFacts
from cputune.doctor.checkfile import check_file
from cputune.host import Command, Completed, Host, Surroundings

TORCHRUN = "torchrun --nproc_per_node 2 train.py --use_cpu --output_dir out"
PYTHON = "python train.py --use_cpu --output_dir out"
NO_OMP = "<command-line>: fatal error: omp.h: No such file or directory\ncompilation terminated."


@dataclass
class FakeHost(Host):
    """A machine with these scripts, and a compiler that says this."""

    scripts: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ("g++",)
    says: str = ""
    live: bool = True

    def read_text(self, path: str) -> str:
        if path not in self.scripts:
            raise FileNotFoundError(path)
        return self.scripts[path]

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.programs else None

    def run(self, command: Command) -> Completed:
        if command.argv[0] in self.programs:
            return Completed(returncode=int(bool(self.says)), stderr=self.says)
        return Completed(returncode=0, stdout="/usr/include/python3.12\n")


def found(
    launch: str, facts: HostFacts = CLEAN, host: Host | None = None, script: str = ""
) -> dict[str, Finding]:
    host = host or FakeHost(scripts={"train.py": script or "TrainingArguments()"})
    return {one.code: one for one in check_file(launch + "\n", "train.sh", facts, host)}


@pytest.mark.parametrize(
    ("launch", "script"),
    [
        (f"{PYTHON} --torch_compile", "TrainingArguments()"),
        (f"{PYTHON} --torch_compile true", "TrainingArguments()"),
        (PYTHON, "model = torch.compile(model)"),
        (f"ACCELERATE_DYNAMO_BACKEND=INDUCTOR {PYTHON}", "TrainingArguments()"),
    ],
)
def test_who_compiles_needs_a_compiler_with_its_headers(
    launch: str, script: str, golden: Golden
) -> None:
    scripts = {"train.py": script}
    well = found(launch, host=FakeHost(scripts=scripts))
    assert "compiler-missing" not in well
    absent = found(launch, host=FakeHost(scripts=scripts, programs=()))
    golden(absent["compiler-missing"].evidence)
    bare = found(launch, host=FakeHost(scripts=scripts, says=NO_OMP))
    golden(bare["compiler-missing"].evidence)


def test_the_compiler_is_the_one_that_is_named() -> None:
    launch = f"export CXX=clang++\n{PYTHON} --torch_compile"
    missing = found(launch, host=FakeHost())["compiler-missing"]
    assert ("clang++ is not installed" in missing.evidence, missing.command) == (True, "unset CXX")
    assert "compiler-missing" not in found(launch, host=FakeHost(programs=("clang++",)))


def weights(size: float, **parts: object) -> HostFacts:
    return changed(surroundings=Surroundings(model_bytes=int(size)), **parts)


def test_each_rank_holds_four_times_the_weights() -> None:
    fits = weights(7.9 * GIB, limits={"memory_bytes": 64 * GIB})
    short = weights(8 * GIB, limits={"memory_bytes": 64 * GIB})
    assert "launch-memory" not in found(TORCHRUN, fits)
    assert "2 × 32.2 GiB for weights of 8.0 GiB" in found(TORCHRUN, short)["launch-memory"].evidence
    assert "launch-memory" not in found(PYTHON, short)
    for fewer in ("--optim adafactor", "--use_peft true"):
        assert "launch-memory" not in found(f"{TORCHRUN} {fewer}", short)
    assert "Start 1 of these ranks" in found(TORCHRUN, short)["launch-memory"].remedy


@every_row(
    ("launch", "script", "short"),
    [
        (f"{TORCHRUN} --ddp_timeout 60", "", True),
        (f"{TORCHRUN} --ddp_timeout 600", "", False),
        (f"{PYTHON} --ddp_timeout 60", "", False),
        (TORCHRUN, "dist.init_process_group(timeout=timedelta(seconds=30))", True),
        (TORCHRUN, "dist.init_process_group(timeout=timedelta(minutes=30))", False),
        (TORCHRUN, "sleep(timedelta(seconds=30))", False),
    ],
)
def test_ranks_wait_for_the_data_of_rank_0(launch: str, script: str, short: bool) -> None:
    assert ("timeout-short" in found(launch, script=script)) is short


@every_row(
    ("launch", "many"),
    [
        (f"TOKENIZERS_PARALLELISM=true {TORCHRUN}", True),
        (f"TOKENIZERS_PARALLELISM=true {PYTHON} --dataloader_num_workers 2", True),
        (f"TOKENIZERS_PARALLELISM=true {PYTHON} --preprocessing_num_workers 8", True),
        (f"TOKENIZERS_PARALLELISM=true {PYTHON}", False),
        (f"{PYTHON} --preprocessing_num_workers 8", False),
        (f"TOKENIZERS_PARALLELISM=false {TORCHRUN}", False),
        (TORCHRUN, False),
    ],
)
def test_a_tokenizer_has_threads_of_its_own(launch: str, many: bool) -> None:
    assert ("tokenizer-threads" in found(launch)) is many


def test_loader_workers_leave_the_cores_to_the_ranks(golden: Golden) -> None:
    assert "loader-threads" not in found(f"{TORCHRUN} --dataloader_num_workers 28")
    many = found(f"{TORCHRUN} --dataloader_num_workers 29")["loader-threads"]
    golden(many.evidence)
    own = "DataLoader(d, num_workers=args.loader_workers)\n"
    for option, too_many in (("--loader-workers 29", True), ("--loader_workers 28", False)):
        assert ("loader-threads" in found(f"{TORCHRUN} {option}", script=own)) is too_many
    script = "def begin(n):\n    torch.set_num_threads({})\nDataLoader(d, worker_init_fn=begin)\n"
    assert "loader-threads" in found(PYTHON, script=script.format(8))
    assert "loader-threads" not in found(PYTHON, script=script.format(1))


@every_row(
    ("script", "against"),
    [
        ("torch.set_num_threads(4)", True),
        ("torch.set_num_threads(56)", False),
        ("def main():\n    torch.set_num_threads(4)\n", True),
        ("os.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n", True),
        ("def unused():\n    torch.set_num_threads(4)\n", False),
        ("torch.set_num_threads(", False),
        ("import os\nos.environ.update(OMP_NUM_THREADS='1')\n", True),
        ("import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\n", False),
        ("torch.set_num_threads(os.cpu_count())", True),
        ("torch.set_num_threads(args.threads)", False),
    ],
)
def test_the_script_is_stronger_than_the_launch(script: str, against: bool) -> None:
    assert ("script-threads" in found(PYTHON, script=script)) is against

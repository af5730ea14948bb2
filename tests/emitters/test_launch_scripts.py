"""How people start an emitted script (a link, ``sh``, a bound shell), and how they end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from emit_machines import one_socket, planned, script_workload
from golden_texts import Golden
from in_process import ran
from test_emit_contract import VERSION_TEXTS

from cputune import Workload, emit

ALLOWED = tuple(sorted(os.sched_getaffinity(0)))
MPIRUN = """#!/bin/sh
[ "$1" != --version ] || { printf '%s\\n' "$MPI_SAYS"; exit; }
printf '%s\\n' "$0" "$@" > "$DUMP"
"""
PYTHON = """#!/bin/sh
case "$*" in -c*) echo 12345; exit ;; esac
printf '%s\\n' "$0" "$@" > "$DUMP"
"""
LEAVES_RANKS = """#!/bin/sh
[ "$1" != --version ] || { printf '%s\\n' "$MPI_SAYS"; exit; }
sleep 1000 &
echo $! > "$DUMP"
wait
"""


class Place:
    """A directory of programs, one of launch files, and an environment in which they meet."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.launch = root, root / "bin", root / "launch files"
        self.dump = root / "dump"
        for directory in (self.bin, self.launch):
            directory.mkdir()
        for name in ("srun", "mpirun"):
            self.program(name, MPIRUN)
        self.program("python3", PYTHON)
        self.program("scontrol", "#!/bin/sh\necho node1\n")
        (root / "run_qa.py").touch()
        self.environment = {
            **os.environ,
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "DUMP": str(self.dump),
            "MPI_SAYS": VERSION_TEXTS["openmpi5"],
            "SLURM_JOB_NODELIST": "node1",
        }

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def emit(self, format: str, cpus: tuple[int, ...] = ALLOWED[:2], **options: object) -> Path:
        """Write the files for a plan of a rank on each of these CPUs; the path of the script."""
        result = planned(
            one_socket().result,
            processes_per_node=len(cpus),
            cpus=tuple((cpu,) for cpu in cpus),
            threads_per_process=1,
            preload=(),
            allocator="default",
        )
        asked: dict[str, object] = {"workload": script_workload(), **options}
        files = emit(result, format, **asked)  # type: ignore[arg-type]
        for file in files:
            path = self.launch / file.name
            path.write_text(file.text, encoding="utf-8")
            path.chmod(0o755)
        return self.launch / files[0].name

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return ran(words, cwd=self.root, env={**self.environment, **environment})

    @property
    def started(self) -> list[str]:
        return self.dump.read_text().splitlines() if self.dump.exists() else []


pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two CPUs")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("format", ["mpirun", "torchrun", "accelerate"])
class TestStarted:
    @pytest.mark.parametrize("way", ["CDPATH", "link", "sh"])
    def test_in_every_way_it_finds_its_companions(
        self, format: str, way: str, place: Place
    ) -> None:
        script = place.emit(format)
        link = place.root / "go"
        link.symlink_to(script)
        words = {"CDPATH": ("bash", str(script.relative_to(place.root))), "link": (str(link),)}
        cdpath = {"CDPATH": f".:{place.root}"} if way == "CDPATH" else {}
        answer = place.run(*words.get(way, ("sh", str(script))), **cdpath)
        assert answer.returncode == 0, answer.stderr
        assert str(place.launch / "rank.py") in place.started

    def test_alone_says_what_it_misses(self, format: str, place: Place, golden: Golden) -> None:
        script = place.emit(format)
        (place.launch / "rank.py").unlink()
        answer = place.run(str(script))
        assert answer.returncode == 3
        golden(answer.stderr)


@pytest.mark.parametrize("format", ["mpirun", "torchrun", "accelerate", "slurm"])
class TestAlone:
    def test_a_lone_process_needs_no_launcher_and_no_file(self, format: str, place: Place) -> None:
        script = place.emit(format, cpus=ALLOWED[1:2])
        assert {path.name for path in place.launch.iterdir()} == {script.name, "plan.json"}
        answer = place.run("sh", str(script), "--more", "a b", PYTHON=sys.executable)
        assert answer.returncode == 0, answer.stderr

    def test_what_the_kernel_passes_over_in_silence_is_said(
        self, format: str, place: Place, golden: Golden
    ) -> None:
        script = place.emit(format, cpus=(4000,))
        answer = place.run(str(script))
        if format == "slurm":  # its numbering is another: the job keeps the CPUs that it has
            assert answer.returncode == 0, answer.stderr
            return
        assert (answer.returncode, place.started) == (3, [])
        golden(answer.stderr)


@pytest.mark.parametrize("says", VERSION_TEXTS.values(), ids=VERSION_TEXTS)
@pytest.mark.parametrize("format", ["mpirun", "accelerate", "torchrun"])
def test_cpus_that_are_not_here_are_our_message_before_any_launcher(
    format: str, says: str, place: Place, golden: Golden
) -> None:
    answer = place.run(str(place.emit(format, cpus=(4000, 4001))), MPI_SAYS=says)
    assert answer.returncode == 3
    golden(answer.stderr)
    assert place.started == []


@pytest.mark.parametrize("mpi", [None, "openmpi4"])
def test_debians_name_for_open_mpi_4(mpi: str | None, place: Place) -> None:
    script = place.emit("mpirun", mpi=mpi)
    answer = place.run(str(script), MPI_SAYS="mpirun.openmpi (OpenRTE) 4.1.4")
    assert answer.returncode == 0, answer.stderr
    assert "--map-by" in place.started


def test_the_mpirun_beside_the_interpreter_that_is_not_on_path(place: Place) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(place.bin / "python3")}
    answer = place.run(str(place.emit("mpirun")), **environment)
    assert answer.returncode == 0, answer.stderr
    assert place.started[0] == str(place.bin / "mpirun")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("mpi", ["intelmpi", None])
def test_a_signal_to_the_script_ends_ranks_that_the_launcher_leaves(
    mpi: str | None, sent: signal.Signals, place: Place
) -> None:
    place.program("mpirun", LEAVES_RANKS)
    script = place.emit("mpirun", mpi=mpi)
    environment = {**place.environment, "MPI_SAYS": VERSION_TEXTS["intelmpi"]}
    # Whoever runs the tests may ignore signals (nohup), which no script can then trap.
    argv = ["env", "--default-signal=TERM,INT,HUP", str(script)]
    with subprocess.Popen(argv, cwd=place.root, env=environment) as process:
        try:
            _until(lambda: bool(place.started))
            process.send_signal(sent)
            assert process.wait(60) == 128 + sent
        finally:
            process.kill()
    (rank,) = place.started
    _until(lambda: not _runs(int(rank)))


def test_the_exit_code_is_the_launchers(place: Place) -> None:
    place.program("mpirun", MPIRUN + "exit 7\n")
    script = place.emit("mpirun", mpi="intelmpi")
    for _ in range(5):  # one that has ended before it is waited for, too
        assert place.run(str(script), MPI_SAYS=VERSION_TEXTS["intelmpi"]).returncode == 7


@pytest.mark.parametrize(("ranks", "companion"), [(2, "rank.py"), (1, "train.py")])
def test_slurm_finds_its_companions_whatever_the_arguments_of_the_job(
    place: Place, ranks: int, companion: str
) -> None:
    workload = script_workload()
    if ranks == 1:
        workload = Workload.from_recipe("bert-mini")
    script = place.emit("slurm", ALLOWED[:ranks], workload=workload)
    copy = place.root / "spool" / "slurm_script"
    copy.parent.mkdir()
    copy.write_text(script.read_text())
    place.program("scontrol", f"#!/bin/sh\necho '   Command={script} --data /some/where a/b'\n")
    answer = place.run("bash", str(copy), "--data", "/some/where", "a/b")
    assert answer.returncode == 0, answer.stderr
    assert str(place.launch / companion) in place.started


def _until(true: object) -> None:
    deadline = time.monotonic() + 60
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

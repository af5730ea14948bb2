"""A launch of several ranks that was never tried trains what one process trains.

Every consumer on one host and on two: the first updates have the loss and the gradient norm of
the script as typed, up to bf16.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import install as launchers
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd
from nodes.slurm_nodes import slurm

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow]

CLASSIFIER = Path(launchers.__file__).with_name("classifier.py")
OPTIONS = (
    *("--output_dir", "out", "--max_steps", "5", "--learning_rate", "1e-3", "--logging_steps", "1"),
    *("--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "True", "--use_cpu"),
    *("--per_device_train_batch_size", "8"),
)
MPIS = ("mpich", "openmpi5", "openmpi4", "impi")
ALONE = ("--ranks-per-node", "2", "--batch-per-rank", "4")
OF_TWO_HOSTS = ("--nodes", "2", "--hosts", "alpha,beta", "--interface", "eth0")
SPREADS = {
    "two ranks": ALONE,
    "two hosts": (*OF_TWO_HOSTS, "--ranks-per-node", "1", "--batch-per-rank", "4"),
    "two of two": (*OF_TWO_HOSTS, "--ranks-per-node", "2", "--batch-per-rank", "2"),
}
LAUNCHES = [
    *(("slurm", "slurm", spread) for spread in SPREADS),
    *(("mpich", "torchrun", spread) for spread in SPREADS),
    *(("mpich", format, spread) for format in ("mpirun", "accelerate") for spread in SPREADS),
    *((mpi, format, "two of two") for mpi in MPIS[1:] for format in ("mpirun", "accelerate")),
]
"""What is on PATH, the format, and how the ranks are spread."""


def updates_of(text: str) -> list[tuple[int, float, float]]:
    """Ranks, loss and gradient norm of each update that rank 0 printed."""
    rows = re.findall(r"update (\d+) ([\d.]+) ([\d.e-]+)", text)
    return [(int(ranks), float(loss), float(norm)) for ranks, loss, norm in rows]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float, float]]:
    """The updates of one process."""
    done = subprocess.run(
        [sys.executable, str(CLASSIFIER), *OPTIONS],
        cwd=tmp_path_factory.mktemp("typed"),
        capture_output=True,
        text=True,
        check=True,
    )
    return updates_of(done.stdout)


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two hosts with one MPI on PATH, or with Slurm."""
    path = "/usr/bin:/bin:/usr/sbin:/sbin"
    if request.param == "slurm":
        if install.why_no_slurm() is not None:
            pytest.skip(str(install.why_no_slurm()))
        with two_hosts() as made, slurm(made):
            yield made
        return
    named = {}
    for name in ("alpha", "beta"):
        with_mpi = {"PATH": f"{launchers.install(request.param) / 'bin'}:{path}"}
        named[name] = Odd(first_in_hosts=f"127.0.1.1 {name}", environment=with_mpi)
    with two_hosts(**named) as made:
        yield made


def emitted(folder: Path, format: str, spread: str, *options: str) -> Path:
    shutil.copy(CLASSIFIER, folder)
    words = ["emit", "--format", format, *SPREADS[spread], "--output", "launch", *options]
    subprocess.run(
        [sys.executable, "-m", "cputune", *words, "--", CLASSIFIER.name, *OPTIONS],
        cwd=folder,
        check=True,
    )
    return folder / "launch" / f"{format}.sh"


def started(hosts: Cluster, script: Path, folder: Path, nodes: int) -> str:
    """What the launch printed, on each host that it is started on."""
    if script.stem == "slurm":
        argv = ["sbatch", "--wait", "--output=job.out", str(script)]
        done = hosts.run("alpha", argv, cwd=folder, check=False, timeout=300)
        text = (folder / "job.out").read_text()
        assert done.returncode == 0, f"{done.stderr}\n{text[-4000:]}"
        return text
    names = hosts.names[: nodes if script.stem == "torchrun" else 1]
    running = [hosts.start(name, [str(script)], cwd=folder) for name in names]
    texts = []
    for each in running:
        out, err = each.communicate(timeout=300)
        assert each.returncode == 0, f"{out[-2000:]}\n{err[-4000:]}"
        texts.append(out)
    return "".join(texts)


@pytest.mark.parametrize(("hosts", "format", "spread"), LAUNCHES, indirect=["hosts"])
def test_the_first_updates_are_those_of_one_process(
    hosts: Cluster,
    format: str,
    spread: str,
    typed: list[tuple[int, float, float]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    options: tuple[str, ...] = ("--self-contained",) if spread == "two of two" else ()
    if format in ("mpirun", "accelerate"):
        options += "--mpi", request.node.callspec.params["hosts"].replace("impi", "intelmpi")
    script = emitted(tmp_path, format, spread, *options)
    nodes = 1 if spread == "two ranks" else 2
    text = started(hosts, script, tmp_path, nodes)
    seen = updates_of(text)
    assert [ranks for ranks, _, _ in seen] == [4 if spread == "two of two" else 2] * 5, text
    for (_, loss, norm), (_, typed_loss, typed_norm) in zip(seen, typed, strict=True):
        assert loss == pytest.approx(typed_loss, rel=2e-3)
        assert norm == pytest.approx(typed_norm, rel=2e-2)

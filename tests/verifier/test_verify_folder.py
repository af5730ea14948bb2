"""The files beside a launch: each planted change is seen, and no honest edit is an alarm."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from emitters.emit_machines import MACHINES
from rows import every_row

from cputune import emit, verify

Edit = Callable[[str], str]


def emitted_folder(format: str, folder: Path, machine: str = "one-socket") -> Path:
    case = MACHINES[machine]()
    folder.mkdir()
    for file in emit(case.result, format, facts=case.facts, **case.options):
        path = folder / file.name
        path.write_text(file.text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("emitted")
    names = ("pytorchjob", "trainjob", "slurm", "torchrun", "accelerate")
    folders = {name: emitted_folder(name, root / name) for name in names}
    folders["two nodes"] = emitted_folder("pytorchjob", root / "two", "two-sockets-smt")
    return folders


def replaced(before: str, after: str) -> Edit:
    """One text for another, which must be there."""

    def edit(text: str) -> str:
        assert before in text, before
        return text.replace(before, after)

    return edit


def added(line: str) -> Edit:
    return lambda text: f"{text}{line}\n"


def without(pattern: str) -> Edit:
    def edit(text: str) -> str:
        changed = re.sub(pattern, "", text, flags=re.MULTILINE)
        assert changed != text, pattern
        return changed

    return edit


def failed(folder: Path, name: str, edit: Edit | None, work: Path) -> set[str]:
    """The checks that fail in a copy of the folder in which a file was edited, or removed."""
    copy = work / "copy"
    shutil.copytree(folder, copy)
    path = copy / name
    if edit is None:
        path.unlink()
    else:
        path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    names = set[str]()
    for verdict in verify([copy], run=False):
        names.update(check.name for check in verdict.checks if check.state == "failed")
    return names


STRICT = "set -euo pipefail\n"
POD_ENV = "ENV MKL_NUM_THREADS=1"
PLANTED: list[tuple[str, str, Edit | None]] = [
    ("pytorchjob", "Dockerfile", replaced("python:3.11-slim", "python:3.8-slim")),
    ("pytorchjob", "Dockerfile", replaced("whl/cpu", "whl/cu126")),
    ("pytorchjob", "Dockerfile", without(r" --constraint /opt/constraints.txt(?= --index-url)")),
    ("pytorchjob", "Dockerfile", replaced(" transformers accelerate", " accelerate")),
    ("pytorchjob", "Dockerfile", without(r"^COPY .*--from=launch .*rank\.py.*$")),
    ("pytorchjob", "Dockerfile", replaced("rank.py", "ranks.py")),
    ("pytorchjob", "Dockerfile", replaced("WORKDIR /workspace", "WORKDIR /srv")),
    ("pytorchjob", "Dockerfile", without(r"^USER .*$")),
    ("pytorchjob", "Dockerfile", added(POD_ENV)),
    ("pytorchjob", "Dockerfile", added("RUN pip install --upgrade torch")),
    ("pytorchjob", "Dockerfile", added("RUN pip install transformers==4.40.0")),
    ("pytorchjob", "Dockerfile", added("RUN pip uninstall -y accelerate")),
    ("pytorchjob", "kustomization.yaml", added("images:\n- {name: x, newTag: '2'}")),
    ("pytorchjob", "Dockerfile.dockerignore", added("**/*.py")),
    ("pytorchjob", "Dockerfile", replaced("3.11-slim-bookworm", "3.11-alpine")),
    ("pytorchjob", "pvc.yaml", replaced("VolumeClaim", "Volume")),
    ("pytorchjob", "pvc.yaml", replaced("20Gi", "20Mi")),
    ("two nodes", "pytorchjob.kubectl.sh", replaced("${NAMESPACE:-training", "${NAMESPACE:-ml")),
    ("two nodes", "pvc.yaml", replaced("ReadWriteMany\n  res", "ReadWriteOnce\n  res")),
    ("two nodes", "pvc.yaml", replaced('name: "shared"', 'name: "shred"')),
    (
        "trainjob",
        "trainjob.yaml",
        replaced("- name: node\n                temp", "- name: a\n  temp"),
    ),
    ("slurm", "slurm.sh", replaced("--exclusive", "--oversubscribe")),
    ("slurm", "plan.json", replaced('"threads_per_process": 4', '"threads_per_process": 3')),
    ("torchrun", "plan.json", replaced('"centre": ', '"centre": 9')),
    ("pytorchjob", "constraints.txt", replaced("torch==", "torch>=")),
    ("pytorchjob", "constraints.txt", without(r"^transformers==.*\n")),
    ("pytorchjob", "constraints.txt", added("torch==2.1.0")),
    ("pytorchjob", "rank.py", replaced("os.sched_setaffinity(0, wanted)", "id((0, wanted))")),
    ("pytorchjob", "rank.py", None),
    ("pytorchjob", "place.py", added("raise SystemExit")),
    ("trainjob", "train.py", replaced("import ", "import  ")),
    ("trainjob", "recipe.json", replaced("1", "2")),
    ("pytorchjob", "kustomization.yaml", without(r"^  - pytorchjob\.yaml\n")),
    ("pytorchjob", "kustomization.yaml", without(r"^configurations:\n.*\n")),
    ("pytorchjob", "kustomization.yaml", replaced("- pvc.yaml", "- pvcs.yaml")),
    ("pytorchjob", "kustomization.yaml", added("replicas:\n- {name: x, count: 4}")),
    ("pytorchjob", "kustomization.yaml", added("  - [")),
    ("trainjob", "trainjob.kustomizeconfig.yaml", replaced("claimName", "claim")),
    ("pytorchjob", "pytorchjob.kubectl.sh", replaced("image=", "image=other/")),
    ("pytorchjob", "pytorchjob.kubectl.sh", replaced("claim=", "claim=my-")),
    ("pytorchjob", "pytorchjob.kubectl.sh", replaced("job=", "job=my-")),
    ("pytorchjob", "pytorchjob.kubectl.sh", without(r' --build-context launch="\$here"')),
    ("pytorchjob", "pytorchjob.kubectl.sh", replaced("delete --ignore-not-found", "delete --all")),
    ("trainjob", "trainjob.kubectl.sh", replaced("trainjob.yaml", "pytorchjob.yaml")),
    ("pytorchjob", "pvc.yaml", replaced("-data", "-output")),
    ("pytorchjob", "Dockerfile.dockerignore", without(r"^\*\*/\.env\*$")),
    ("slurm", "slurm.sh", replaced("--nodes=1 --ntasks-per-node", "--nodes=2 --ntasks-per-node")),
    ("slurm", "slurm.sh", replaced("--cpus-per-task=4", "--cpus-per-task=1")),
    ("slurm", "slurm.sh", replaced("--ntasks-per-node=2 --cpus", "--ntasks-per-node=4 --cpus")),
    ("slurm", "slurm.sh", replaced("--time=24:00:00", "--time=2")),
    ("slurm", "slurm.sh", replaced("--exclusive\n", "--exclusive --mem=100M\n")),
    ("slurm", "slurm.sh", replaced("--exclusive\n", "--exclusive --mem=64G --mem-per-cpu=1G\n")),
    ("slurm", "slurm.sh", without(r"^#SBATCH.*\n")),
    ("slurm", "slurm.sh", replaced("--hint=nomultithread", "--hint=multithread")),
    ("slurm", "slurm.sh", replaced("--cpu-bind=cores", "--cpu-bind=none")),
    ("slurm", "slurm.sh", replaced("SLURM_OVERLAP=1 ", "")),
    ("slurm", "rank.py", replaced("slurm", "slurms")),
    ("torchrun", "torchrun.sh", replaced("--nproc-per-node 2", "--nproc-per-node 1")),
    ("torchrun", "torchrun.sh", replaced("--ddp_backend gloo", "--ddp_backend mpi")),
    ("accelerate", "accelerate.yaml", replaced("num_processes: 2", "num_processes: 1")),
    ("accelerate", "accelerate.sh", replaced("set -euo pipefail", "set -u")),
]
HONEST: list[tuple[str, str, Edit | None]] = [
    ("pytorchjob", "Dockerfile", replaced("python:3.11-slim", "mirror.example/python:3.12-slim")),
    ("pytorchjob", "Dockerfile", replaced("-bookworm", f"-bookworm@sha256:{'a' * 64}")),
    ("pytorchjob", "Dockerfile", replaced("https://pypi.org/simple", "https://mirror.example/pip")),
    ("pytorchjob", "Dockerfile", replaced(" accelerate", " accelerate evaluate")),
    ("pytorchjob", "Dockerfile", added("RUN apt-get update && apt-get install --yes git")),
    ("pytorchjob", "Dockerfile", added("ENV HTTPS_PROXY=http://proxy:3128")),
    ("pytorchjob", "Dockerfile", added("RUN pip install tensorboard")),
    ("pytorchjob", "Dockerfile", added("LABEL team=nlp")),
    ("pytorchjob", "Dockerfile", replaced("USER 1000:1000", "USER 1000")),
    ("pytorchjob", "Dockerfile", without(r"^#.*\n")),
    ("pytorchjob", "Dockerfile", None),
    ("pytorchjob", "Dockerfile", replaced("FROM $BASE_IMAGE", "FROM $BASE_IMAGE AS train")),
    (
        "pytorchjob",
        "pytorchjob.kubectl.sh",
        replaced("busybox:1.36", "mirror.example:5000/busybox:1.36"),
    ),
    ("torchrun", "plan.json", replaced("\n ", "\n    ")),
    ("pytorchjob", "constraints.txt", added("evaluate==0.4.6")),
    ("pytorchjob", "constraints.txt", added("# versions of the team")),
    ("pytorchjob", "kustomization.yaml", added("namespace: nlp\nnamePrefix: team-")),
    ("pytorchjob", "kustomization.yaml", added("labels:\n  - pairs: {team: nlp}")),
    ("pytorchjob", "kustomization.yaml", None),
    ("pytorchjob", "pytorchjob.kubectl.sh", replaced("${NAMESPACE:-''}", "${NAMESPACE:-nlp}")),
    ("pytorchjob", "pytorchjob.kubectl.sh", replaced("--timeout 5m", "--timeout 20m")),
    ("pytorchjob", "pytorchjob.kubectl.sh", added("# the team's cluster")),
    ("pytorchjob", "pytorchjob.kubectl.sh", None),
    ("pytorchjob", "pvc.yaml", replaced("20Gi", "200Gi")),
    ("pytorchjob", "pvc.yaml", replaced("ReadWriteOnce", "ReadWriteMany")),
    ("trainjob", "Dockerfile.dockerignore", added("**/data")),
    ("slurm", "slurm.sh", replaced("--time=24:00:00", "--time=3-00:00:00 --partition=cpu")),
    ("slurm", "slurm.sh", replaced("#SBATCH --nodes", "#SBATCH --mail-type=END\n#SBATCH --nodes")),
    ("slurm", "slurm.sh", replaced(STRICT, f"{STRICT}module load python\n")),
    ("slurm", "slurm.sh", replaced("${PYTHON:-python3}", "${PYTHON:-/opt/venv/bin/python}")),
    ("torchrun", "torchrun.sh", replaced(STRICT, f"{STRICT}export HF_HOME=/c\n")),
    ("torchrun", "torchrun.sh", replaced(STRICT, "set -euo pipefail # strict\n# ours\n")),
    ("slurm", "slurm.sh", replaced(STRICT, f"{STRICT}source ~/venv/bin/activate\n")),
]


def cases(rows: list[tuple[str, str, Edit | None]]) -> list[object]:
    return [pytest.param(*row, id=f"{number}-{row[0]}-{row[1]}") for number, row in enumerate(rows)]


@every_row(("format", "name", "edit"), cases(PLANTED))
def test_a_planted_change_is_seen(
    format: str, name: str, edit: Edit | None, folders: dict[str, Path], tmp_path: Path
) -> None:
    assert failed(folders[format], name, edit, tmp_path)


@every_row(("format", "name", "edit"), cases(HONEST))
def test_an_honest_edit_is_no_alarm(
    format: str, name: str, edit: Edit | None, folders: dict[str, Path], tmp_path: Path
) -> None:
    assert failed(folders[format], name, edit, tmp_path) == set()

"""Pieces of the bash scripts: quoting, the head that all share, variables, a free port."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from cputune import cpulist
from cputune.emit.header import comment
from cputune.emit.interface import Beside, EmittedFile, Job, Output, Word
from cputune.errors import UsageError

OVERRIDING = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT",
    "OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_THREAD_LIMIT OMP_DYNAMIC GOMP_CPU_AFFINITY",
    "MKL_NUM_THREADS KMP_AFFINITY KMP_BLOCKTIME KMP_HW_SUBSET LD_PRELOAD MALLOC_CONF",
    "CCL_WORKER_COUNT CCL_WORKER_AFFINITY CCL_LOCAL_RANK CCL_LOCAL_SIZE CCL_PROCESS_LAUNCHER",
    "ACCELERATE_USE_CPU ACCELERATE_MIXED_PRECISION ACCELERATE_USE_IPEX ACCELERATE_TORCH_DEVICE",
    "ACCELERATE_USE_DEEPSPEED ACCELERATE_USE_FSDP",
)
"""Variables of an outer environment that would change the plan, a line per theme."""

OVERRIDING_PINS = (
    "I_MPI_PIN I_MPI_PIN_DOMAIN I_MPI_PIN_PROCESSOR_LIST I_MPI_PIN_CELL I_MPI_PIN_ORDER",
    "I_MPI_PIN_PROCESSOR_EXCLUDE_LIST I_MPI_PERHOST HYDRA_BINDING",
)

OVERRIDING_TORCHRUN = (
    "PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT",
    "PET_RDZV_BACKEND PET_RDZV_ENDPOINT PET_STANDALONE PET_MAX_RESTARTS",
)

FREE_PORT = """
free_port() {
  "$python" -c 'import socket
with socket.socket() as s:
    s.bind(("", 0))
    print(s.getsockname()[1])'
}
port=$(free_port)
"""


def quote(word: Word) -> str:
    """A word for bash: exactly itself, or the path of a file beside the script."""
    if isinstance(word, Beside):
        return f'"$here/{word.name}"'
    if isinstance(word, Output):
        return word.name
    return shlex.quote(word)


def array(name: str, words: Iterable[Word]) -> str:
    """A bash array, a word to a line, an option and its value together."""
    lines: list[str] = []
    pending = False
    for word in words:
        text = quote(word)
        option = isinstance(word, str) and word.startswith("-")
        if pending and not option:
            lines[-1] += " " + text
        else:
            lines.append("  " + text)
        pending = option
    return f"{name}=(\n" + "\n".join(lines) + "\n)\n"


def head(job: Job, title: str, notes: Iterable[str] = ()) -> str:
    """Shebang, header comment, and what every script needs first."""
    lines = [title, "", *job.header]
    lines += [f"Note: {note}" for note in (*job.notes, *notes)]
    return (
        "#!/usr/bin/env bash\n"
        + comment(lines)
        + r"""set -euo pipefail

fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 3
}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
command -v -- "$python" >/dev/null ||
  fail "there is no $python" "set PYTHON to the interpreter that trains"
"""
    )


def training(job: Job) -> str:
    """The training command as the array ``train``, and a look whether its script is there."""
    text = "\n# What is trained; further arguments of this script are appended.\n"
    text += array("train", job.command)
    script = job.command[0]
    if isinstance(script, str) and not script.startswith("-"):
        text += (
            '[[ -f ${train[0]} ]] ||\n  fail "${train[0]} is not here" '
            '"start this from the directory that it was tuned in"\n'
        )
    return text


def clear(*themes: Iterable[str]) -> str:
    """Unset what an outer environment must not decide."""
    lines = [f"unset {line}" for theme in themes for line in theme]
    return "\n# An outer environment must not change the plan.\n" + "\n".join(lines) + "\n"


def exports(environment: Mapping[str, str]) -> str:
    """Export the variables of every rank."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


def rank_options(job: Job, launcher: str, *, binding: str = "exact") -> list[str]:
    """The options of rank.py that bind the ranks of this plan."""
    shares = "/".join(cpulist.render(cpus) for cpus in job.plan.cpus)
    options = ["--launcher", launcher, "--cpus", shares]
    if binding != "exact":
        options += ["--bind", binding]
    return options


def oneccl(job: Job) -> str:
    """Source the setvars.sh of the oneCCL bindings, which bring oneCCL and Intel MPI."""
    if job.plan.backend != "ccl":
        return ""
    module = oneccl_module(job.versions.get("oneccl_bind_pt"))
    return f"""
# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c 'import importlib.util, os
spec = importlib.util.find_spec("{module}")
print(spec and os.path.join(os.path.dirname(spec.origin), "env", "setvars.sh") or "")')
[[ -f $setvars ]] ||
  fail "{module} has no env/setvars.sh here" "install the oneccl_bind_pt that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
"""


def oneccl_module(version: str | None) -> str:
    """The module of a oneccl_bind_pt release: ``torch_ccl`` before 1.12.0."""
    from packaging.version import InvalidVersion, Version

    try:
        old = version is not None and Version(version) < Version("1.12.0")
    except InvalidVersion:
        old = False
    return "torch_ccl" if old else "oneccl_bindings_for_pytorch"


def require_hosts(job: Job) -> None:
    """Raise UsageError where a launch on several nodes does not know them."""
    if job.plan.nodes > 1 and not job.nodes:
        raise UsageError(
            f"a launch on {job.plan.nodes} nodes needs their names",
            hint="give --hostfile FILE or --hosts a,b",
        )


def script(name: str, text: str, notes: tuple[str, ...] = ()) -> EmittedFile:
    """An executable file of an artefact."""
    return EmittedFile(name=name, text=text, executable=True, notes=notes)


def without_mpi(job: Job) -> dict[str, str]:
    """What oneCCL needs where no mpirun starts the ranks: rank.py adds the local numbers.

    Environment variables CCL_PROCESS_LAUNCHER and CCL_ATL_TRANSPORT of the oneCCL
    documentation: "none" takes CCL_LOCAL_RANK and CCL_LOCAL_SIZE, over OFI.
    """
    if job.plan.backend != "ccl":
        return {}
    return {"CCL_PROCESS_LAUNCHER": "none", "CCL_ATL_TRANSPORT": "ofi"}

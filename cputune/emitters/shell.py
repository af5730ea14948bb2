"""Pieces of the bash scripts: quoting, the head that all share, variables, the last lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from cputune.carrier.environment import CLEARED
from cputune.carrier.interface import interface_variables
from cputune.emitters import header
from cputune.emitters.format import Beside, EmittedFile, LaunchJob, Output, Secret, Word
from cputune.emitters.words import WIDTH, CpuList, ShellWord, Variables, comment, typed
from cputune.errors import UsageError
from cputune.stack import Versions, oneccl_module

DIFFERENT_NODES = (
    "The hosts differ in their CPUs: no launcher binds, rank.py binds each rank to the CPUs of "
    "its own host."
)
MEET_SCRIPT = "meet.py"

STRICT = r"""# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail

fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 3
}
"""

HERE = """# The files beside this one, also where it is started through a symbolic link.
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
[[ -f $here/rank.py ]] ||
  fail "rank.py is not beside ${0##*/}" "keep the files that were emitted together in one directory"
"""


def clear() -> str:
    """Lines that remove from the outer environment what would change the plan."""
    text = "\n# An outer environment must not change the plan: trials were run without these too.\n"
    for group in CLEARED:
        words = [f'"${{!{n[:-1]}@}}"' if n.endswith("*") else n for n in group.names]
        text += comment([f"{group.why[0].upper()}{group.why[1:]}."])
        text += textwrap.fill(
            " ".join(["unset", *words]),
            WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        ).replace("\n", " \\\n")
        text += "\n"
    return text


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
        return ShellWord(word.before + word.name)
    if isinstance(word, Secret):
        return (ShellWord(word.before) if word.before else "") + f'"${{{word.variable}}}"'
    return ShellWord(word)


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


def lines_array(name: str, lines: Iterable[str]) -> str:
    """A bash array of lines that are bash already."""
    return f"\n{name}=(\n" + "".join(f"  {line}\n" for line in lines) + ")\n"


def head(
    job: LaunchJob, format: str, title: str, notes: Iterable[str] = (), *, inputs: str = ""
) -> str:
    """Shebang, header comment, and what every script needs first.

    ``inputs`` are lines that read variables of the caller before those are cleared.
    """
    notes = (*notes, DIFFERENT_NODES) if job.plan.node_cpus else notes
    text = "#!/usr/bin/env bash\n" + header.full(job, format, title, notes)
    return text + STRICT + HERE + inputs + python(job) + clear()


def python(job: LaunchJob) -> str:
    """The interpreter that trains: PYTHON, else the one of the tuning, else python3."""
    text = "python=${PYTHON:-python3}\n"
    if job.python is not None:
        text += f"tuned={ShellWord(job.python)}\n"
        text += "[[ -n ${PYTHON:-} || ! -x $tuned ]] || python=$tuned\n"
    return text + CHECK_PYTHON


CHECK_PYTHON = """command -v -- "$python" >/dev/null ||
  fail "there is no $python" "set PYTHON to the interpreter that trains"
"$python" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("torch") is None)' ||
  fail "$python has no torch" "set PYTHON to the interpreter that trains"
"""


_LOOKS_LIKE_CODE = re.compile(r"[$`\\‘’“”]")


def training(job: LaunchJob) -> str:
    """The training command as the array ``train``, and a look whether its script is there."""
    text = "\n# What is trained; further arguments of this script are appended.\n"
    texts = (word.name if isinstance(word, Output) else word for word in job.command)
    if any(isinstance(word, str) and _LOOKS_LIKE_CODE.search(word) for word in texts):
        text += "# shellcheck disable=SC1003,SC1111,SC1112,SC2016 # words are meant as they stand\n"
    for name in job.workload.secrets:
        text += f'[[ -n ${{{name}:-}} ]] ||\n  fail "{name} is not set" "export {name}=…"\n'
    text += array("train", job.command)
    if job.script is not None:
        place = f"${{train[{job.command.index(job.script)}]}}"
        text += (
            f'[[ -f {place} ]] ||\n  fail "{place} is not here" '
            '"start this from the directory that it was tuned in"\n'
        )
    return text


def exports(environment: Variables) -> str:
    """Export the variables of every rank."""
    return "".join(f"export {name}={ShellWord(value)}\n" for name, value in environment.items())


def rank(
    job: LaunchJob,
    launcher: str,
    *,
    binding: str = "exact",
    here: bool = False,
    more: Iterable[str] = (),
) -> str:
    """rank.py and its options as the array ``rank``; ``more`` are lines of bash.

    ``here``: the ranks run on the machine that runs the script, which can thus look whether
    they can have their CPUs before a launcher binds them: hydra's own message for CPUs that
    are not there is ``hwloc_set_cpubind failed``. Else the ranks of several nodes meet.
    """
    lines = ['"$here/rank.py"', f"--launcher {launcher}", *_lists(job)]
    if binding != "exact":
        lines.append(f"--bind {binding}")
    if job.plan.nodes > 1 and not here:
        lines.append(f"--meet {MEET_SECONDS}")
    text = lines_array("rank", [*lines, *more])
    return text + LOOK if here and job.plan.nodes == 1 else text


def _lists(job: LaunchJob) -> list[str]:
    """The CPUs of each local rank; of each host where they differ, and by which names."""
    plan = job.plan
    nodes = range(plan.nodes if plan.node_cpus else 1)
    lines = [f"--cpus {ShellWord(CpuList(*plan.cpus_on(node)))}" for node in nodes]
    if not plan.node_cpus:
        return lines
    if plan.backend == "ccl" and plan.ccl_cpus:
        lines += [
            f"--ccl-cpus {ShellWord(','.join(str(c) for of in plan.ccl_cpus_on(node) for c in of))}"
            for node in nodes
        ]
    return [*lines, f"--hosts {ShellWord(','.join(node.name for node in job.nodes))}"]


MEET_SECONDS = 120
"""So long the ranks of a launch wait for each other: a launcher starts them all at once."""

LOOK = """"$python" "${rank[@]}" --look
"""


def meeting(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """meet.py, which rank.py needs beside it on several nodes."""
    if job.plan.nodes == 1:
        return ()
    text = Path(__file__).with_name("_meet.py").read_text(encoding="utf-8")
    return (EmittedFile(name=MEET_SCRIPT, text=text),)


FIND_SETVARS = """import importlib.util, os
spec = importlib.util.find_spec("{module}")
print(spec and os.path.join(os.path.dirname(spec.origin), "env", "setvars.sh") or "")"""


def oneccl(job: LaunchJob) -> str:
    """Source the setvars.sh of the oneCCL bindings, which bring oneCCL and Intel MPI."""
    if job.plan.backend != "ccl":
        return ""
    module = oneccl_module(Versions.from_names(job.versions))
    return f"""
# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c '{FIND_SETVARS.format(module=module)}')
[[ -f $setvars ]] ||
  fail "{module} has no env/setvars.sh here" \\
    "install the oneccl_bind_pt that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
"""


def require_hosts(job: LaunchJob) -> None:
    """Raise UsageError where a launch on several nodes does not know them."""
    if job.plan.nodes > 1 and not job.nodes:
        raise UsageError(
            f"a launch on {job.plan.nodes} nodes needs their names",
            hint="give --hostfile FILE or --hosts a,b",
        )


def script(name: str, text: str, notes: tuple[str, ...] = ()) -> EmittedFile:
    """An executable file of an artefact."""
    return EmittedFile(name=name, text=text, executable=True, notes=notes)


def variables(job: LaunchJob, *, intel_mpi: bool = False, pods: bool = False) -> Variables:
    """The variables of every rank: the plan's, and what its network needs.

    ``pods`` have interfaces of their own: only what the user names is told to them.

    Where Intel MPI does not start the ranks, oneCCL is told to use no launcher, over OFI,
    and rank.py adds the local numbers (CCL_PROCESS_LAUNCHER in the oneCCL documentation).
    """
    found: dict[str, str] = dict(job.environment.items())
    interface = job.cluster.interface if pods else job.interface
    if interface is not None:
        found.update(interface_variables(interface, backend=job.plan.backend))
    if job.plan.backend == "ccl" and not intel_mpi:
        found.update(CCL_PROCESS_LAUNCHER="none", CCL_ATL_TRANSPORT="ofi")
    return typed(found)


WATCHED = """
# accelerate and Intel MPI's mpirun leave their ranks behind when they alone are killed: so a
# signal to this script goes to all that it has started.
[[ ! -t 0 ]] || exec </dev/null
set -m
"${launch[@]}" "$@" &
started=$!
for signal in HUP INT QUIT TERM; do
  # shellcheck disable=SC2064 # each trap its own signal
  trap "kill -s $signal -- -$started 2>/dev/null || true" "$signal"
done
while
  status=0
  wait "$started" || status=$?
  kill -0 "$started" 2>/dev/null # a signal to this script only interrupted the waiting
do :; done
# Whatever the launcher has left behind, however it ended.
kill -s TERM -- "-$started" 2>/dev/null || true
exit "$status"
"""
"""The end of a script whose launcher does not end its ranks; elsewhere it becomes the launcher.

A launcher that is replaced (exec) keeps the terminal; one that is watched does not read it.
"""


def start(words: str, *, watched: bool) -> str:
    """The last lines: the launch, with the further arguments of the script."""
    if watched:
        return f"launch+=({words})\n{WATCHED}"
    return f'exec "${{launch[@]}}" {words} "$@"\n'

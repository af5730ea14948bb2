"""The bash scripts: the texts of ``texts/``, filled with words that are quoted here."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from cputune import cpulist
from cputune.carrier.environment import CLEARED
from cputune.carrier.interface import interface_variables
from cputune.emitters import header
from cputune.emitters.format import Beside, EmittedFile, LaunchJob, Output, Secret, Word
from cputune.emitters.words import WIDTH, ShellWord, Variables, typed
from cputune.errors import UsageError
from cputune.stack import Versions, oneccl_module

TEXTS = Path(__file__).with_name("texts")


def fill(name: str, values: Mapping[str, str]) -> str:
    """A text of ``texts/`` with its ``{{names}}`` filled in, by words that are quoted already.

    A name alone in its line stands for whole lines, or for none. One that is no value is that of
    another text, which lies beside it. What was filled in is not read again.
    """

    def value(match: re.Match[str]) -> str:
        found = match[1] or match[2]
        return values[found] if found in values else fill(f"{found}.sh", values)

    text = (TEXTS / name).read_text(encoding="utf-8")
    return re.sub(r"(?m)^\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", value, text)


def launch_script(
    job: LaunchJob, format: str, title: str, notes: Iterable[str] = (), **values: str
) -> EmittedFile:
    """The script of a format: its text, with what all of them say of the job. Raises UsageError."""
    notes = tuple(notes)
    said = f"Launch of {job.workload.name} with {title}."
    filled = {
        "header": header.said(job, format, said, notes),
        "tuned": python(job),
        "clear": clear(),
        "oneccl": oneccl(job),
        "training": training(job),
        "exports": exports(variables(job)),
        **values,
    }
    text = fill(f"{format}.sh", filled) + header.promised(job, format)
    return EmittedFile(name=f"{format}.sh", text=text, executable=True, notes=notes)


def clear() -> str:
    """Lines that remove from the outer environment what would change the plan."""
    names = [name for group in CLEARED for name in group.names]
    words = [f'"${{!{name[:-1]}@}}"' if name.endswith("*") else name for name in names]
    lines = textwrap.wrap(
        " ".join(["unset", *words]),
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    text = " \\\n".join(lines)
    return f"\n# What a shell or another launch has set would change the plan.\n{text}\n"


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


def python(job: LaunchJob) -> str:
    """Lines that take the interpreter of the tuning, where it is there and PYTHON says no other."""
    if job.python is None:
        return ""
    taken = "[[ -n ${PYTHON:-} || ! -x $tuned ]] || python=$tuned\n"
    return f"tuned={ShellWord(job.python)}\n{taken}"


_LOOKS_LIKE_CODE = re.compile(r"[$`\\‘’“”]")
LITERAL = "# shellcheck disable=SC1003,SC1111,SC1112,SC2016 # words are meant as they stand\n"


def literal(words: Iterable[Word]) -> str:
    """A line that stands before words which look like code to shellcheck; else nothing."""
    texts = (word.name if isinstance(word, Output) else word for word in words)
    found = any(isinstance(word, str) and _LOOKS_LIKE_CODE.search(word) for word in texts)
    return LITERAL if found else ""


def training(job: LaunchJob) -> str:
    """The training command as the array ``train``, and a look whether its script is there."""
    text = "\n# What is trained; further arguments of this script are appended.\n"
    text += literal(job.command)
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
    are not there is ``hwloc_set_cpubind failed``.
    """
    cpus = ShellWord("/".join(map(cpulist.render, job.plan.cpus)))
    lines = ['"$here/rank.py"', f"--launcher {launcher}", f"--cpus {cpus}"]
    if binding != "exact":
        lines.append(f"--bind {binding}")
    look = '"$python" "${rank[@]}" --look\n' if here else ""
    return lines_array("rank", [*lines, *more]) + look


FIND_SETVARS = """import importlib.util, os
spec = importlib.util.find_spec("{module}")
print(spec and os.path.join(os.path.dirname(spec.origin), "env", "setvars.sh") or "")"""


def oneccl(job: LaunchJob) -> str:
    """Lines that source the setvars.sh of the oneCCL bindings, with oneCCL and Intel MPI."""
    if job.plan.backend != "ccl":
        return ""
    module = oneccl_module(Versions.from_names(job.versions))
    values = {"module": module, "find_setvars": FIND_SETVARS.format(module=module)}
    return fill("oneccl.sh", values)


def require_hosts(job: LaunchJob) -> None:
    """Raise UsageError where a launch on several nodes does not know them."""
    if job.plan.nodes > 1 and not job.nodes:
        raise UsageError(
            f"a launch on {job.plan.nodes} nodes needs their names",
            hint="give --hostfile FILE or --hosts a,b",
        )


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

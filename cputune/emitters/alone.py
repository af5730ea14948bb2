"""The script of one rank: what a person would type, with the environment cleared before it.

The same for every launcher, because a lone process needs none. It looks only after what has gone
wrong without a word: a CPU that is not there (the kernel takes those that are), and a library that
is preloaded and missing (the dynamic linker only warns).
"""

from __future__ import annotations

from cputune import cpulist
from cputune.emitters import header, shell
from cputune.emitters.format import Beside, EmittedFile, LaunchJob
from cputune.emitters.hand import packed, words
from cputune.emitters.words import ShellWord


def script_of_one(job: LaunchJob, format: str, *, before: str = "", after: str = "") -> EmittedFile:
    """The script; ``before`` are words in front of what binds the process, ``after`` behind it."""
    cpus = cpulist.render(job.plan.cpus[0])
    trained = [line.strip() for line in shell.array("", words(job)).splitlines()[1:-1]]
    start = packed([f'exec {before}taskset -c {cpus} {after}"$python"', *trained, '"$@"'])
    exported = [f"{name}={ShellWord(value)}" for name, value in shell.variables(job).items()]
    values = {
        "header": header.said(job, format, f"Launch of {job.workload.name}."),
        "tuned": _python(job),
        "clear": shell.clear(),
        "needs": _needs(job, cpus),
        "exports": " \\\n  ".join(packed(["export", *exported])) + "\n" if exported else "",
        "start": shell.literal(words(job)) + " \\\n  ".join(start) + "\n",
        "promise": header.promised(job, format),
    }
    text = shell.fill("alone.sh", values)
    return EmittedFile(name=f"{format}.sh", text=text, executable=True)


def _python(job: LaunchJob) -> str:
    """The interpreter: PYTHON, else that of the tuning where it is there; and where files lie."""
    text = "python=${PYTHON:-python3}\n" + shell.python(job)
    if any(isinstance(word, Beside) for word in words(job)):
        text += 'here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")\n'
    return text


def _needs(job: LaunchJob, cpus: str) -> str:
    """What is looked at before it starts."""
    count = len(job.plan.cpus[0])
    seen = f'"$(taskset -c {cpus} nproc 2>/dev/null)" == {count}'
    text = _unless(seen, f"CPUs {cpus} are not all here: tune where it runs")
    for library in job.plan.preload:
        text += _unless(
            f"-f {ShellWord(library)}",
            "a library that the plan preloads is not here: install it here too",
        )
    for name in job.workload.secrets:
        text += f': "${{{name}:?is not set: export it}}"\n'
    return text


def _unless(condition: str, said: str) -> str:
    what, _, hint = said.partition(": ")
    printed = f"printf 'error: %s\\nhint: %s\\n' '{what}' '{hint}' >&2"
    return f"[[ {condition} ]] || {{\n  {printed}\n  exit 3\n}}\n"

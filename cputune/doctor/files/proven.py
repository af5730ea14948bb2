"""Whether a fixed file still starts what the file started: ranks, threads, what is preloaded.

The launches of both texts are compared. A fix that makes a launch worse, or leaves it unknown what
it starts, is not printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cputune.host import Command, Host
from cputune.launch.launch import Launch
from cputune.launch.located_words import number_of

_ALLOCATORS = ("jemalloc", "tcmalloc", "iomp5")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
_ASKS_FOR_CCL = re.compile(r"""--?[\w-]*backend(?:=|[ \t]+|["'],\s*)["']?ccl\b""")
_CCL_SETUP = re.compile(r"setvars\.sh|\bCCL_[A-Z_]+=")


def worse(before: Sequence[Launch], after: Sequence[Launch], text: str, fixed: str) -> str | None:
    """Why the fixed text is worse than the text, or why that is not known; None if it is
    neither.
    """
    if len(before) != len(after):
        return f"it has {len(after)} launches, and had {len(before)}"
    for old, new in zip(before, after, strict=True):
        for question in (_machines, _ranks, _threads, _preload):
            reason = question(old, new, text, fixed)
            if reason is not None:
                return reason
    return None


def replaced(asked: Sequence[Launch], after: Sequence[Launch]) -> str | None:
    """What a launch was asked for by an option, and gets another value of; None if nothing.

    ``asked`` are the launches of the file as it was written. Its threads may be meant for a larger
    machine than this one.
    """
    if len(asked) != len(after):
        return None
    for old, new in zip(asked, after, strict=True):
        threads, now = old.meant("threads"), new.threads
        if threads is None or now is None or threads == now:
            continue
        option = next(one for one in old.given if one.option and one.option.means == "threads")
        return f"{option.name} asks for {threads} threads, and the fix would set {now}"
    return None


def _written(launch: Launch, text: str, *means: str) -> str | None:
    """The value of an option as written in the file: a variable, not its value."""
    values = []
    for one in launch.given:
        if one.option and one.option.means in means:
            values.append(one.value)
    if not values:
        return None
    value = values[-1]
    span = getattr(value, "span", None)
    if span is not None:
        return text[span.start : span.end].strip("\"'")
    return str(value)


def _machines(old: Launch, new: Launch, text: str, fixed: str) -> str | None:
    was, now = (_written(old, text, "nodes"), _written(new, fixed, "nodes"))
    if was is not None and "$" in was and was != now:
        return f"how many machines take part is a variable ({was}), which the fix would remove"
    if new.machines < old.machines:
        return f"{new.machines} of {old.machines} machines would take part"
    return None


def _ranks(old: Launch, new: Launch, text: str, fixed: str) -> str | None:
    means = ("ranks", "ranks per node")
    was, now = _written(old, text, *means), _written(new, fixed, *means)
    if was is not None and "$" in was:
        if now is None or "$" not in now:
            return f"the number of ranks is a variable ({was}), which the fix would remove"
        return None
    totals = []
    for launch in (old, new):
        totals.append(None if launch.ranks is None else launch.ranks * launch.machines)
    if totals[0] is not None and totals[1] is not None and totals[1] < totals[0]:
        return f"{totals[1]} of {totals[0]} ranks would be started"
    if totals[0] not in (None, 1) and totals[1] is None:
        return f"{totals[0]} ranks were started; how many the fix starts is not known"
    return None


def _threads(old: Launch, new: Launch, text: str, fixed: str) -> str | None:
    if number_of(old.threads) and new.threads is None:
        return f"OMP_NUM_THREADS={old.threads} would be lost"
    return None


def _preload(old: Launch, new: Launch, text: str, fixed: str) -> str | None:
    before = " ".join(f"{one.name} {one.value or ''}" for one in old.given)
    kept = " ".join(f"{one.name} {one.value or ''}" for one in new.given)
    kept += " " + new.environment.get("LD_PRELOAD", "")
    for library in _ALLOCATORS:
        if (
            re.search(rf"(alloc|enable|runtime)\S*[ =_]*\S*{library}", before)
            and library not in kept
        ):
            return (
                f"{library} would no longer be preloaded; write LD_PRELOAD with its path, and run "
                "this again"
            )
    return None


def without_ccl(text: str, fixed: str) -> str | None:
    """Why the fix may not take away what sets up oneCCL: a launch still asks for it.

    The text is searched, and not the launches: scripts add the backend to a variable
    (``CMD+=" --backend=ccl"``) under a condition that only running decides.
    """
    if not _ASKS_FOR_CCL.search(_COMMENT.sub("", fixed)):
        return None
    if len(_CCL_SETUP.findall(fixed)) < len(_CCL_SETUP.findall(text)):
        return "the script would still use ccl, without the setup of oneCCL"
    return None


def refused(host: Host, text: str, fixed: str) -> str | None:
    """What bash, and shellcheck if it is installed, say of the fixed script and not of the script.

    Nothing else is run.
    """
    if not host.live or max(len(text), len(fixed)) > LETTERS_AT_MOST:
        return None
    for program, command in _READERS:
        if host.which(program) is None:
            continue
        ended = []
        for one in (text, fixed):
            ended.append(
                host.run(
                    Command(argv=("bash", "-c", command, "read", one), timeout_seconds=READ_SECONDS)
                )
            )
        if ended[0].returncode == 0 and ended[1].returncode not in (0, None):
            message = (ended[1].stderr or ended[1].stdout).strip().splitlines()
            return f"{program} refuses the result: {message[0] if message else 'an error'}"
    return None


# The longest argument that a process is given; Linux takes 128 KiB.
LETTERS_AT_MOST = 100_000
# Time limit of one reader.
READ_SECONDS = 20.0
_READERS = (
    ("bash", 'bash -n -c "$1"'),
    ("shellcheck", 'shellcheck --norc --shell=bash --severity=error --format=gcc - <<<"$1"'),
)

# A function that says why the fix of a text is not printed, or None.
Proof = Callable[[str, str], "str | None"]

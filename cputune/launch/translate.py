"""A launch with another launcher.

Each option becomes one of the new launcher, or a variable of the ranks, or is left out with the
reason. If an option has no counterpart, the launch is not translated.
"""

from __future__ import annotations

from dataclasses import dataclass

from cputune.launch.launch import Launch
from cputune.launch.launchers import BY_NAME
from cputune.launch.located_words import number_of
from cputune.launch.option import Given

_RANKS = ("ranks", "ranks per node")
_ALONE = {
    "node rank": "one process is on one machine",
    "address": "one process needs no rendezvous",
    "port": "one process needs no rendezvous",
    "restarts": "python starts once",
    "tee": "python writes to the terminal",
    "log folder": "python writes to the terminal",
    "role": "python starts one process",
}
"""Why one process by python loses nothing without an option that decides this."""
_ALWAYS = {"distributed": "torchrun always is"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """A launch with another launcher.

    Attributes:
        words: the new program, with what follows it directly.
        options: each option of the old launcher, and its new name; None if it is left out.
        variables: ``NAME=VALUE`` in front.
        left_out: what is left out, each with the reason.
        refused: options without a counterpart: nothing is translated.
    """

    words: tuple[str, ...]
    options: tuple[tuple[Given, str | None], ...] = ()
    variables: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def by_python(launch: Launch) -> Translated:
    python = ("python", "-m") if launch.module else ("python",)
    options, left_out = list[tuple[Given, str | None]](), list[str]()
    variables, refused = list[str](), list[str]()
    for one in launch.given:
        options.append((one, None))
        means = one.option.means if one.option else ""
        if means == "module" or (means in (*_RANKS, "nodes") and _is_one(one.value)):
            continue
        if not _as_variable(one, variables):
            _leave(one, _ALONE.get(means, ""), left_out, refused)
    return Translated(
        words=python,
        options=tuple(options),
        variables=tuple(variables),
        left_out=tuple(left_out),
        refused=tuple(refused),
    )


def by_torchrun(launch: Launch) -> Translated:
    """The same ranks by torchrun, on each machine its own."""
    options, left_out = list[tuple[Given, str | None]](), list[str]()
    variables, refused = list[str](), list[str]()
    several = launch.machines > 1 or not _is_one(launch.meant("nodes"))
    if several and launch.meant("node rank", "rendezvous endpoint") is None:
        refused.append("the number of each machine, which torchrun needs (--node_rank)")
    for one in launch.given:
        means = ""
        if one.option:
            means = one.option.means
        if several and means in ("ranks", "host file"):
            refused.append(one.text)
        name = _in_torchrun(one, means)
        options.append((one, name))
        if name is None and not _as_variable(one, variables):
            _leave(one, _ALWAYS.get(means, ""), left_out, refused)
    return Translated(
        words=("torchrun",),
        options=tuple(options),
        variables=tuple(variables),
        left_out=tuple(left_out),
        refused=tuple(refused),
    )


def _in_torchrun(one: Given, means: str) -> str | None:
    """The option of torchrun that decides the same; None if it has no such option."""
    torchrun = BY_NAME["torchrun"]
    of_torchrun = torchrun.option(one.name)
    if of_torchrun is not None and of_torchrun is one.option:
        if of_torchrun.needless:
            return None
        return one.name
    if not means:
        return None
    return torchrun.spelled("ranks per node" if means in _RANKS else means)


def by_mpirun(launch: Launch) -> Translated:
    """Ranks on the machines of a host file, by an mpirun of hydra (Intel MPI, MPICH)."""
    each, machines = number_of(launch.total) or 1, launch.machines
    ranks = ("-n", str(each * machines), "-ppn", str(each))
    options, left_out = list[tuple[Given, str | None]](), list[str]()
    variables, refused = list[str](), list[str]()
    host_file = list[str]()
    if launch.total is not None and number_of(launch.total) is None:
        refused.append(f"{launch.total} ranks on each machine")
    for one in launch.given:
        means = one.option.means if one.option else ""
        options.append((one, None))
        if means == "host file":
            host_file += ["-f", one.value]
        elif means == "address":
            variables.append(f"MASTER_ADDR={one.value}")
        elif means == "port":
            variables.append(f"MASTER_PORT={one.value}")
        elif means in (*_RANKS, "nodes", "distributed", "module"):
            continue
        elif not _as_variable(one, variables):
            _leave(one, "", left_out, refused)
    python = ("python", "-m") if launch.module else ("python",)
    return Translated(
        words=("mpirun", *host_file, *ranks, *python),
        options=tuple(options),
        variables=tuple(variables),
        left_out=tuple(left_out),
        refused=tuple(refused),
    )


def _is_one(count: str | None) -> bool:
    return count is None or count in ("1", "1:1")


def _as_variable(one: Given, variables: list[str]) -> bool:
    """Whether a rank has this option as a variable, which is then added."""
    if one.option is None:
        return False
    means, value = one.option.means, one.value
    if means == "threads":
        variables.append(f"OMP_NUM_THREADS={value}")
    elif means == "precision":
        variables.append(f"ACCELERATE_MIXED_PRECISION={value}")
    elif means == "use cpu":
        variables.append("ACCELERATE_USE_CPU=true")
    elif one.option.variable:
        variables.append(one.option.variable.format(value, upper=value.upper()))
    else:
        return False
    return True


def _leave(one: Given, reason: str, left_out: list[str], refused: list[str]) -> None:
    """Note an option that is left out, or that prevents a translation."""
    reason = reason or (one.option.needless if one.option else "")
    if reason:
        left_out.append(f"{one.text}: {reason}")
    else:
        refused.append(one.text)

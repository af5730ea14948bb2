"""A launch with another launcher.

Each option becomes one of the new launcher, or a variable of the ranks, or is left out with the
reason. If an option has no counterpart, the launch is not translated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cputune.launch.launch import Launch
from cputune.launch.launchers import BY_NAME
from cputune.launch.option import Given

_RANKS = ("ranks", "ranks per node")
# Why one process by python loses nothing without an option that decides this.
_ALONE = {
    "node rank": "one process is on one machine",
    "address": "one process needs no rendezvous",
    "port": "one process needs no rendezvous",
    "restarts": "python starts once",
    "tee": "python writes to the terminal",
    "log folder": "python writes to the terminal",
    "role": "python starts one process",
}
_ALWAYS = {"distributed": "torchrun always is"}


@dataclass(slots=True, kw_only=True)
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
    options: list[tuple[Given, str | None]] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def without(self, one: Given, reason: str = "") -> None:
        """Make an option a variable of the ranks; or leave it out, or refuse to translate."""
        if self._has_as_variable(one):
            return
        reason = reason or (one.option.needless if one.option else "")
        if reason:
            self.left_out.append(f"{one.text}: {reason}")
        else:
            self.refused.append(one.text)

    def _has_as_variable(self, one: Given) -> bool:
        """Whether a rank has this option as a variable, which is then added."""
        means, value = meaning(one), one.value
        if means == "threads":
            self.variables.append(f"OMP_NUM_THREADS={value}")
        elif means == "precision":
            self.variables.append(f"ACCELERATE_MIXED_PRECISION={value}")
        elif means == "use cpu":
            self.variables.append("ACCELERATE_USE_CPU=true")
        elif one.option and one.option.variable:
            self.variables.append(one.option.variable.format(value, upper=value.upper()))
        else:
            return False
        return True


def meaning(one: Given) -> str:
    """What an option decides; empty for an unknown one."""
    if one.option is None:
        return ""
    return one.option.means


def by_python(launch: Launch) -> Translated:
    new = Translated(words=_python(launch))
    for one in launch.given:
        new.options.append((one, None))
        means = meaning(one)
        if means == "module" or (means in (*_RANKS, "nodes") and _is_one(one.value)):
            continue
        new.without(one, _ALONE.get(means, ""))
    return new


def by_torchrun(launch: Launch) -> Translated:
    """The same ranks by torchrun, on each machine its own."""
    new = Translated(words=("torchrun",))
    several = launch.machines > 1 or not _is_one(launch.meant("nodes"))
    if several and launch.meant("node rank", "rendezvous endpoint") is None:
        new.refused.append("the number of each machine, which torchrun needs (--node_rank)")
    for one in launch.given:
        means = meaning(one)
        if several and means in ("ranks", "host file"):
            new.refused.append(one.text)
        name = _in_torchrun(one, means)
        new.options.append((one, name))
        if name is None:
            new.without(one, _ALWAYS.get(means, ""))
    return new


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
    each, machines = launch.total_ranks or 1, launch.machines
    new, host_file = Translated(words=()), list[str]()
    if launch.total is not None and launch.total_ranks is None:
        new.refused.append(f"{launch.total} ranks on each machine")
    for one in launch.given:
        means = meaning(one)
        new.options.append((one, None))
        if means == "host file":
            host_file += ["-f", one.value]
        elif means == "address":
            new.variables.append(f"MASTER_ADDR={one.value}")
        elif means == "port":
            new.variables.append(f"MASTER_PORT={one.value}")
        elif means not in (*_RANKS, "nodes", "distributed", "module"):
            new.without(one)
    ranks = ("-n", str(each * machines), "-ppn", str(each))
    new.words = ("mpirun", *host_file, *ranks, *_python(launch))
    return new


def _python(launch: Launch) -> tuple[str, ...]:
    if launch.module:
        return ("python", "-m")
    return ("python",)


def _is_one(count: str | None) -> bool:
    return count is None or count in ("1", "1:1")

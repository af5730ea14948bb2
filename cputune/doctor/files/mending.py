"""Which edits cure a fault of a launch: the launcher, its options, its variables, its lines.

Each function is given the places of a file and what is wrong there; the fault that found it hands
the edits on with its finding. What has no safe cure in the file has none here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from cputune.doctor.edit import Edit
from cputune.doctor.files.places import Places, Token
from cputune.plans.training_command import TrainingCommand, number_of
from cputune.stack import load

_SETS = re.compile(r"export((?: [A-Za-z_]\w*=\S+)+)")
_UNSETS = re.compile(r"unset((?: [A-Za-z_]\w*)+)")


def by_command(places: Places, launch: TrainingCommand, command: str | None) -> tuple[Edit, ...]:
    """What a command would set or unset in a shell, written where the file does."""
    sets, unsets = _SETS.fullmatch(command or ""), _UNSETS.fullmatch(command or "")
    edits = list[Edit]()
    if sets:
        for word in shlex.split(sets[1]):
            name, _, value = word.partition("=")
            edits += places.set_variable(launch, name, value)
    if unsets:
        for name in unsets[1].split():
            edits += places.unset_variable(launch, name)
    return tuple(edits)


def force_cpu(places: Places, launch: TrainingCommand) -> tuple[Edit, ...]:
    """The launch asks for the CPU: accelerate launch by its option, a script by its flag."""
    inside = launch.inner or launch
    if inside.launcher == "accelerate" and launch.script:
        return behind_program(places, inside, "--cpu")
    return places.add_flags(launch, "--use_cpu")


def behind_program(places: Places, launch: TrainingCommand, *words: str) -> tuple[Edit, ...]:
    """Options of a launcher, as the first of its line."""
    tokens = places.of(launch)
    at = next((i for i, token in enumerate(tokens) if token.text == launch.program), None)
    if at is None:
        return ()
    if tokens[at + 1 : at + 2] and tokens[at + 1].text == "launch":
        at += 1
    return (places.after(tokens[at], words),)


def plain_launcher(places: Places, launch: TrainingCommand) -> tuple[Edit, ...]:
    """python for one rank, torchrun for several, mpirun over several machines."""
    ranks = number_of(launch.total) or 1
    variables = list[str]()
    cores = launch.option("--ncores_per_instance", "--ncore_per_instance", "--ncores_per_node")
    if number_of(cores):
        variables.append(f"OMP_NUM_THREADS={cores}")
    words: tuple[str, ...] = ("python",)
    hosts = launch.option("--hostfile")
    if launch.machines > 1 and hosts:
        total = ranks * launch.machines
        words = ("mpirun", "-f", hosts, "-n", str(total), "-ppn", str(ranks), "python")
    elif launch.machines > 1:
        return ()
    elif ranks > 1:
        words = ("torchrun", "--nproc_per_node", str(ranks))
    if launch.module:
        words = (*words, "-m")
    edits = places.relaunched(launch, words, variables)
    if edits and launch.launcher == "deepspeed":
        edits += places.without_value(launch, "--deepspeed")
    return edits


def by_torchrun(places: Places, launch: TrainingCommand) -> tuple[Edit, ...]:
    """Ranks of one machine that accelerate would start through mpirun alone, by torchrun."""
    if launch.machines > 1 or number_of(launch.total) is None or not launch.script:
        return ()
    variables = ["ACCELERATE_USE_CPU=true"]
    precision = launch.option("--mixed_precision")
    if precision:
        variables.append(f"ACCELERATE_MIXED_PRECISION={precision}")
    threads = launch.option("--num_cpu_threads_per_process")
    if threads:
        variables.append(f"OMP_NUM_THREADS={threads}")
    words = ("torchrun", "--nproc_per_node", str(launch.total))
    return places.relaunched(launch, (*words, "-m") if launch.module else words, variables)


def in_dialect(places: Places, launch: TrainingCommand, dialect: str) -> tuple[Edit, ...]:
    """The options of an mpirun in the words that this one knows."""
    rows = {name: row for row in load().mpirun for name in row.names}
    tokens = places.of(launch)
    at = next((i for i, token in enumerate(tokens) if token.text == launch.program), len(tokens))
    edits = list[Edit]()
    while at < len(tokens) and tokens[at].text != launch.script:
        row = rows.get(tokens[at].text)
        said = row.said_to(dialect) if row else None
        if row is None or said is None:
            at += 1
            continue
        words, values = _with_values(tokens, at, row.takes)
        if said:
            text = said.format(*values)
            edits.append(Edit(start=words[0].start, end=words[-1].end, text=text))
        else:
            edits += places.without(words)
        at += len(words)
    return tuple(edits)


def _with_values(
    tokens: Sequence[Token], at: int, takes: int
) -> tuple[Sequence[Token], tuple[str, ...]]:
    """An option with the words behind it; ``NAME=VALUE`` stands for two of them."""
    first = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if takes == 2 and "=" in first:
        name, _, value = first.partition("=")
        return tokens[at : at + 2], (name, value)
    words = tokens[at : at + 1 + takes]
    return words, tuple(word.text for word in words[1:])


_SETVARS = re.compile(
    r"""(?<![\w./-])(?:source|\.)[ \t]+["']?(\S*(?:setvars\.sh|/conda\.sh|/bin/activate))["']?"""
)
_BINDINGS = r"(?:oneccl_bindings_for_pytorch|torch_ccl)"
_ASKED = re.compile(
    r"(?:export[ \t]+)?\b(\w+)=(?:\$\(|`)python[0-9.]*\s+-c\s+(\\?[\"'])"
    rf"[^\"'\n]*{_BINDINGS}[^\"'\n]*\2(?:\)|`)"
)


def sourced(places: Places) -> Iterator[tuple[int, str, bool, tuple[Edit, ...]]]:
    """What a file sources of oneAPI or an environment: line, path, if it is the bindings', edits.

    The edits take the line out, and with it the one that asks Python for the bindings' folder.
    """
    asked = list(_ASKED.finditer(places.code))
    for found in _SETVARS.finditer(places.code):
        folder = next(
            (variable for variable in asked if re.search(rf"\$\{{?{variable[1]}\b", found[1])), None
        )
        own = folder is not None or bool(re.search(_BINDINGS, found[1]))
        edits = [_statement(places, found.start(), found.end())]
        if folder is not None:
            edits.append(_statement(places, folder.start(), folder.end()))
        line = places.code.count("\n", 0, found.start()) + 1
        yield line, found[1], own, tuple(edits)


def _statement(places: Places, start: int, end: int) -> Edit:
    """A statement of shell taken out, with what separates it from the next."""
    separated = re.match(r"[ \t]*(?:;|&&)[ \t]*", places.code[end:])
    if separated:
        end += separated.end()
        if places.code[end : end + 1] != "\n":
            return Edit(start=start, end=end)
    return places.cut(start, end)

"""Trainings that a script starts at once: in the background, by xargs or by parallel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cputune.doctor.files.context import Context
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.launch.edit import Edit
from cputune.launch.grammar import Tree
from cputune.launch.launch import CONFINERS, Launch
from cputune.launch.located_words import number_of, value_of
from cputune.launch.places import Places
from cputune.plans.cores import usable_cores
from cputune.text.plain import count

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = ("for_statement", "while_statement", "c_style_for_statement")


@fault("trainings-at-once", Severity.WARNING)
def at_once() -> None:
    """Several trainings run at once, with more threads than there are CPUs

    Symptom: each training is many times slower than alone.

    Cause: a process without OMP_NUM_THREADS starts a thread for every core, and knows nothing of
    the others. Threads that spin at a barrier take the CPUs from those that they wait for.

    Remedy: Set OMP_NUM_THREADS to the cores divided by the trainings, or run one after the other.

    Source: pytorch/pytorch#22260, https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    """


def judge_at_once(text: str, launches: Sequence[Launch], context: Context) -> Iterator[Finding]:
    """Launches of one rank that a script does not wait for before it starts the next."""
    cores, tree = len(usable_cores(context.facts)), Tree(text)
    together = list[tuple[JudgedLaunch, int | None]]()
    for one in launches:
        launch = JudgedLaunch.of(one, context)
        copies = _copies(launch, tree)
        if copies != 0 and launch.ranks == 1 and not _is_confined(launch):
            together.append((launch, copies))
    least = sum(copies or 2 for _, copies in together)
    if least < 2 or not cores:
        return
    first = together[0][0]
    threads = cores if first.threads is None else number_of(first.threads)
    if threads is None or least * threads <= cores:
        return
    number = str(least) if all(copies for _, copies in together) else "several"
    each = f"{threads} threads"
    if first.threads is None:
        each += " (OMP_NUM_THREADS is unset)"
    evidence = f"{number} trainings at once × {each} on {count(cores, 'core')}"
    edits: tuple[Edit, ...] = ()
    if number != "several":
        fewer = str(max(1, cores // least))
        edits = first.edits_by(Places.set_variable, "OMP_NUM_THREADS", fewer)
    yield at_once.finding(first.at(evidence), edits=edits)


def _copies(launch: JudgedLaunch, tree: Tree) -> int | None:
    """How many of this launch run at the same time as others; 0 if it is waited for, None if only
    running shows their number.
    """
    names = [word.rpartition("/")[2] for word in launch.before]
    for program, option in (("xargs", "-P"), ("parallel", "-j")):
        if program in names:
            return number_of(value_of(launch.before, option, f"--{option[1:]}")) or None
    if launch.span is None:
        return 0
    commands = list(tree.nodes("command"))
    for number, node in enumerate(commands):
        if tree.span(node).start != launch.span.start or not in_background(node):
            continue
        loop = loop_around(node)
        if loop is None:
            return 1
        if is_waited_for(commands[number + 1 :], tree, loop):
            return 0
        return _turns(loop, tree)
    return 0


def _turns(loop: Node, tree: Tree) -> int | None:
    """The turns of ``for x in a b c``; None if only running shows them."""
    if loop.type != "for_statement":
        return None
    values = [tree.of(node) for node in loop.children_by_field_name("value")]
    if not values or any(re.search(r"[$`*?{]", value) for value in values):
        return None
    return len(values)


def _is_confined(launch: JudgedLaunch) -> bool:
    names = {word.rpartition("/")[2] for word in launch.before}
    return bool(names & {*CONFINERS, "srun"})


def words_of(node: Node, tree: Tree) -> list[str]:
    """The words of a command, without the variables that are set for it."""
    words = list[str]()
    for child in node.children:
        if child.type != "variable_assignment":
            words.append(tree.of(child).strip("\"'"))
    return words


def in_background(node: Node) -> bool:
    """Whether an & ends the command, behind its redirections and pipes."""
    while node.parent is not None and node.parent.type in ("redirected_statement", "pipeline"):
        node = node.parent
    following = node.next_sibling
    return following is not None and following.type == "&"


def until_wait(commands: list[Node], tree: Tree, end: int | None) -> list[list[str]]:
    """The commands up to the next ``wait``."""
    words = list[list[str]]()
    for node in commands:
        if end is not None and tree.span(node).start > end:
            break
        words.append(words_of(node, tree))
        if words[-1][:1] == ["wait"]:
            break
    return words


def is_waited_for(commands: list[Node], tree: Tree, loop: Node) -> bool:
    """Whether a loop waits for what it has started before its next turn."""
    inside = until_wait(commands, tree, tree.span(loop).end)
    return any(words[:1] == ["wait"] for words in inside)


def loop_around(node: Node) -> Node | None:
    above = node.parent
    while above is not None and above.type not in _LOOPS:
        above = above.parent
    return above


CHECKS = checks_of(__name__)

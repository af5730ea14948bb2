"""A launch with the file that it is in, and the machine and packages that will run it.

Its script is read if it is on this machine; else only its name and arguments are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Concatenate, ParamSpec

from cputune.doctor.files.context import Context, facts_elsewhere
from cputune.host.facts import HostFacts
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.located_words import number_of
from cputune.launch.places import Places
from cputune.launch.script import Script, are_trainers, is_example

_More = ParamSpec("_More")


@dataclass(frozen=True, kw_only=True)
class JudgedLaunch(Launch):
    """A launch that is judged in its context: the file, the machine, the packages."""

    context: Context

    @classmethod
    def of(cls, launch: Launch, context: Context) -> JudgedLaunch:
        """The launch in this context."""
        values = {one.name: getattr(launch, one.name) for one in fields(Launch)}
        return cls(**values, context=context)

    @property
    def facts(self) -> HostFacts:
        """Of the machine that will run it."""
        return self.context.facts

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """The environment of the launcher: ours, as changed by the file."""
        kept = {}
        for name, text in self.facts.environment.items():
            removed = any(fnmatchcase(name, pattern) for pattern in self.removed)
            if self.context.here and not removed:
                kept[name] = text
        return {**kept, **self.environment}

    @property
    def job_nodes(self) -> int | None:
        """The machines of its srun step, or of its job; None if neither says it."""
        if self.step is not None and self.step.nodes is not None:
            return self.step.nodes
        return self.context.target.nodes

    @property
    def nodes(self) -> int:
        """The machines that take part, as its words and its variables say."""
        return max(self.machines, number_of(self.environment.get("SLURM_NNODES")) or 1)

    @property
    def of_a_task(self) -> JudgedLaunch:
        """The same with the CPUs of one srun task, if there is one."""
        target, step = self.context.target, self.step
        if not target.elsewhere or step is None:
            return self
        cpus = step.cpus_per_task or target.cpus_per_task
        if cpus is None and target.cpus_per_node is not None:
            cpus = 1
        context = replace(self.context, facts=facts_elsewhere(self.facts, cpus))
        return replace(self, context=context)

    def at(self, text: str) -> str:
        """``train.sh:12: text``"""
        return self.context.at(self.line, text)

    def edits_by(
        self,
        make: Callable[Concatenate[Places, Launch, _More], tuple[Edit, ...]],
        *what: _More.args,
        **more: _More.kwargs,
    ) -> tuple[Edit, ...]:
        """The edits of this launch that a function of ``fixing`` makes; empty without a file."""
        return self.context.edits_by(make, self, *what, **more)

    @cached_property
    def script_text(self) -> str | None:
        """The text of its script; None for a module, or if it cannot be read."""
        if not self.script or self.module:
            return None
        return self.context.text_of(self.script)

    def reader_of(self, flag: str) -> str:
        """What reads a flag: ``trainer`` (TrainingArguments), ``its own`` or ``unknown``."""
        if self.context.parser is not None:
            return self.context.parser
        if self.script_text is not None:
            return Script(text=self.script_text).reader_of(flag)
        return "trainer" if is_example(self.script) else "unknown"

    def is_trainers(self, flag: str) -> bool:
        """Whether TrainingArguments read a flag."""
        return self.reader_of(flag) == "trainer"

    def may_be_trainers(self, flag: str) -> bool:
        """Whether TrainingArguments may read a flag: the script is not seen to read it itself."""
        return self.reader_of(flag) != "its own"

    @property
    def by_library(self) -> bool:
        """Whether Trainer or accelerate trains, as far as the launch or the script shows it."""
        if self.inside.launcher == "accelerate" or are_trainers(self.arguments):
            return True
        return self.is_trainers("--ddp_backend")

    @property
    def is_own(self) -> bool:
        """Whether the script starts its process group itself, without accelerate."""
        return Script(text=self.script_text or "").starts_own_ranks

    @property
    def is_by_mpi(self) -> bool:
        """Whether the ranks of the script talk by MPI or Horovod, which need no address."""
        text = self.script_text
        if text is None:
            places = self.context.places
            return places is not None and "horovod" in places.text.lower()
        if re.search(r"torch\.distributed|\baccelerate\b|\bTrainer\b|lightning", text):
            return False
        return re.search(r"(?m)^\s*(?:import|from)\s+(?:mpi4py|horovod)\b", text) is not None

    @property
    def asks_for_cpu(self) -> bool:
        """Whether the script itself asks Trainer or accelerate for the CPU."""
        return Script(text=self.script_text or "").asks_for_cpu

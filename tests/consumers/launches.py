"""What the tests of the consumers launch: plans, a result, a recipe, arguments that bite."""

from __future__ import annotations

import os
from importlib import metadata

import pytest
from confirmed import confirmed

from cputune import Plan, Result, Workload
from cputune.records.claims import Speedup
from cputune.records.result import Measured, Throughput

HOSTILE = (
    "a b",
    "$HOME",
    "`id`",
    "'single'",
    'say "no"',
    "semi;colon",
    "two\nlines",
    "-n",
    "#",
    "",
)

THOROUGH = pytest.mark.thorough
"""Of a launch that is like others: left to ``make test-consumers``."""

TINY = """
description = "A BERT that trains a step in milliseconds"
task = "question-answering"
sequence_length = 32
global_batch_size = 8
learning_rate = 3e-5

[model]
model_type = "bert"
vocab_size = 1000
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 128
max_position_embeddings = 64
"""

MEASURED = Throughput(centre=0.001, low=0.0009, high=0.0011)
"""Slower than anything, so that no test hangs on how busy the machine is."""


def two_ranks(**fields: object) -> Plan:
    """A rank on each of two CPUs of this machine, in bf16."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    values = {
        "processes_per_node": 2,
        "threads_per_process": 1,
        "precision": "bf16",
        "cpus": ((first,), (second,)),
    }
    return Plan(**{**values, **fields})  # type: ignore[arg-type]


def result_of(plan: Plan, workload: Workload) -> Result:
    """A result as tune would have written it."""
    baseline = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), as_found=True)
    topology = {"sockets": 1, "physical_cores": 2, "threads_per_core": 1, "logical_cpus": 2}
    return Result(
        host={"cpu": {"model_name": "a test"}, "topology": topology},
        versions=installed_versions(),
        workload=workload,
        baseline=Measured(plan=baseline, samples_per_second=MEASURED),
        best=Measured(plan=plan, samples_per_second=MEASURED),
        speedup=Speedup(ratio=1.2, low=1.1, high=1.3, pairs=5),
        confirmation=confirmed(baseline, plan),
        trials=(),
        created="2026-11-20T12:00:00+00:00",
    )


def installed_versions() -> dict[str, str]:
    """The training stack of this environment."""
    return {name: metadata.version(name) for name in ("torch", "transformers", "accelerate")}

"""A result file changed by hand: refused in words, or emitted; never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from emit_machines import one_socket, two_sockets_smt

from cputune.emitters import emit
from cputune.emitters.machine import machine_difference, missing_cpus
from cputune.errors import CputuneError, ResultError
from cputune.result import Result

JUNK: tuple[Any, ...] = (None, -1, 1.5, "x", [], {"a": 1}, True, 10**30, "a\nb", [["a"]])


def document(case: Any) -> dict[str, Any]:
    content = json.loads(json.dumps(case.result.to_json()))
    assert isinstance(content, dict)
    return content


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*way, key))
    elif isinstance(value, list):
        for position, part in enumerate(value[:1]):
            yield from places(part, (*way, position))


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_in_any_place(junk: Any) -> None:
    case = two_sockets_smt()
    sound = document(case)
    refused = 0
    for way in places(sound):
        changed = copy.deepcopy(sound)
        part = changed
        for key in way[:-1]:
            part = part[key]
        part[way[-1]] = junk
        try:
            result = Result.from_json(changed)
            machine_difference(result.host, case.facts)
            missing_cpus(result.best.plan, case.facts)
            emit(result, "mpirun", nodes=1)
            emit(result, "pytorchjob", nodes=1)
        except CputuneError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("way", "junk", "said"),
    [
        (("best", "samples_per_second", "median"), "fast", "median: expected a number, got text"),
        (
            ("best", "plan", "cpus"),
            [[-1], [2]],
            "cpus[0][0]: expected a whole number >= 0",
        ),
        (("best", "plan", "ccl_workers"), -1, "ccl_workers: expected a whole number >= 0"),
        (("versions",), {"torch": 2}, "versions[...]: expected text, got a whole number"),
        (("workload", "recipe"), None, "neither a recipe nor a script"),
        (("created",), 5, "created: expected text or nothing, got a whole number"),
        (("trials",), "x", "the result file is damaged"),
    ],
)
def test_it_says_where(way: tuple[str, ...], junk: Any, said: str) -> None:
    changed = document(one_socket())
    part = changed
    for key in way[:-1]:
        part = part[key]
    part[way[-1]] = junk
    with pytest.raises(ResultError) as caught:
        Result.from_json(changed)
    assert said in str(caught.value)
    assert caught.value.hint

"""A result file changed by hand: refused in words, or emitted; never a traceback."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from emit_machines import one_socket, script_workload, two_sockets_smt
from rows import every_row
from ruamel.yaml import YAML

from cputune import CputuneError, Result, ResultError, emit
from cputune.emitters import PRINTED_FORMATS
from cputune.records.shared_texts import machine_difference, missing_cpus

JUNK: tuple[Any, ...] = (None, -1, 1.5, "x", [], {"a": 1}, True, 10**30, "a\nb", [["a"]])


def document(case: Any) -> dict[str, Any]:
    return json.loads(json.dumps(case.result.to_json()))


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*way, key))
    elif isinstance(value, list):
        for position, part in enumerate(value[:1]):
            yield from places(part, (*way, position))


def inside(document: Any, way: tuple[Any, ...]) -> Any:
    """The part of a document that holds what is at the end of this way."""
    for key in way[:-1]:
        document = document[key]
    return document


one_place_of = pytest.mark.parametrize("one_of", [8, pytest.param(1, marks=pytest.mark.matrix)])
"""One place of so many is looked at by `make test`, for each text others; all at night."""


@one_place_of
@every_row("junk", JUNK, ids=repr)
def test_junk_in_any_place(junk: Any, one_of: int) -> None:
    case = two_sockets_smt()
    sound = document(case)
    refused = 0
    for way in islice(places(sound), JUNK.index(junk) % one_of, None, one_of):
        changed = copy.deepcopy(sound)
        inside(changed, way)[way[-1]] = junk
        try:
            result = Result.from_json(changed)
            machine_difference(result.host, case.facts)
            missing_cpus(result.best.plan, case.facts)
            if way[0] in ("trials", "confirmation"):
                continue  # no launch file says anything of them
            emit(result, "mpirun", nodes=1)
            emit(result, "pytorchjob", nodes=1)
        except CputuneError:
            refused += 1
    assert refused * one_of > 20


@pytest.mark.parametrize(
    ("way", "junk", "said"),
    [
        (("best", "samples_per_second", "centre"), "fast", "centre: expected a number, got text"),
        (("best", "plan", "cpus"), [[-1], [2]], "cpus[0][0]: expected a whole number >= 0"),
        (("workload", "recipe"), None, "a workload needs a recipe or a script"),
    ],
)
def test_it_says_where(way: tuple[str, ...], junk: Any, said: str) -> None:
    changed = document(one_socket())
    inside(changed, way)[way[-1]] = junk
    with pytest.raises(ResultError) as caught:
        Result.from_json(changed)
    assert said in str(caught.value)
    assert caught.value.hint


HOSTILE = (
    "x\n: >INJECTED\n#'\n: >INJECTED\n#\"\n: >INJECTED\n",
    "$(: >INJECTED)`: >INJECTED`'; : >INJECTED; '\"; : >INJECTED; \"\\",
)
"""What a shell would obey outside its quotes."""


def hostile_documents(text: str) -> Iterator[dict[str, Any]]:
    """A sound result with this text in the place of each text, and of each key."""
    sound = document(one_socket())
    sound["workload"] = script_workload("--do_train", "--output_dir", "out").to_json()
    sound["hosts"], sound["interface"] = ["node1", "node2"], "eth0"
    for way in places(sound):
        for as_key in (False, True):
            changed = copy.deepcopy(sound)
            part = inside(changed, way)
            if as_key and isinstance(part, dict):
                part[text] = part.pop(way[-1])
            elif not as_key and isinstance(part[way[-1]], str):
                part[way[-1]] = text
            else:
                continue
            yield changed
    for argv in (["run_qa.py", text], [f"{text}/run_qa.py"], [f"a{text}.py"], ["-m", text]):
        yield {**sound, "workload": {**sound["workload"], "argv": argv, "name": argv[0]}}


def structure(node: Any) -> Any:
    """The keys of a document, whatever stands at them."""
    if isinstance(node, dict):
        return {key: structure(value) for key, value in node.items()}
    if isinstance(node, list):
        return [structure(value) for value in node if isinstance(value, (dict, list))]
    return None


def instructions(dockerfile: str) -> list[str]:
    """The instructions of a Dockerfile, as its reader cuts them."""
    lines = [line for line in dockerfile.split("\n") if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").split("\n")
    return [line.split()[0] for line in whole if line.strip()]


@one_place_of
@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_and_no_value_of_a_result_becomes_a_command(
    text: str, one_of: int, tmp_path: Path
) -> None:
    """The real readers: bash, dash, and YAML 1.1 and 1.2."""
    sound = emit(one_socket().result, "all", workload=script_workload(), nodes=1)
    for format in PRINTED_FORMATS:
        sound += emit(one_socket().result, format, workload=script_workload(), nodes=1)
    usual = {file.name: file.text for file in sound}
    written: set[str] = set()
    seen: set[str] = set()
    for content in islice(hostile_documents(text), HOSTILE.index(text), None, one_of):
        try:
            result = Result.from_json(content)
        except CputuneError:
            continue
        for format in ("all", *PRINTED_FORMATS):
            try:
                files = emit(result, format, nodes=1)
            except CputuneError:
                continue
            written.add(format)
            for file in files:
                if file.name == "Dockerfile":
                    assert set(instructions(file.text)) == set(instructions(usual["Dockerfile"]))
                elif file.name.endswith(".yaml"):
                    read = yaml.safe_load(file.text)
                    assert read == YAML(typ="safe", pure=True).load(file.text)
                    assert set(structure(read)) == set(structure(yaml.safe_load(usual[file.name])))
                elif file.name.endswith(".sh"):
                    run_alone(file.text, tmp_path, seen)
    assert written == {"all", *PRINTED_FORMATS}


def run_alone(script: str, place: Path, seen: set[str]) -> None:
    """Run a script to its end, whatever is missing, with programs that do nothing."""
    code = "\n".join(line for line in script.split("\n") if not line.startswith("# "))
    code = code.replace("  exit 3\n", "  :\n")
    if code in seen:
        return
    seen.add(code)
    fakes = place / "fakes"
    fakes.mkdir(exist_ok=True)
    for name in ("mpirun", "python3", "srun", "scontrol", "kubectl", "docker"):
        (fakes / name).write_text("#!/bin/sh\n")
        (fakes / name).chmod(0o755)
    (place / "launch").write_text(code, encoding="utf-8")
    shell = "bash" if code.startswith("#!") else "dash"
    subprocess.run(
        [shell, str(place / "launch"), "submit"],
        cwd=place,
        env={"PATH": f"{fakes}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node1"},
        timeout=120,
        check=False,
        capture_output=True,
    )
    assert not (place / "INJECTED").exists(), script

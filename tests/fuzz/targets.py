"""What reads from outside, and what must hold whatever it reads."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from emitters.emit_machines import MACHINES, one_socket, script_workload
from fuzz.inputs import near, texts
from hosts.builder import Cgroup, FakeTree, machine
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cputune import (
    Cluster,
    CputuneError,
    Node,
    RecordedHost,
    Result,
    Workload,
    diagnose,
    emit,
    probe,
)
from cputune.doctor.checkfile import check_file
from cputune.doctor.symptoms import explain, judge_symptom
from cputune.emitters import FORMATS, PRINTED_FORMATS, parse_hostfile, parse_hosts
from cputune.emitters.promise import promise_in
from cputune.host.files import read_document
from cputune.plans.workload import recipes_dir
from cputune.report.diagnosis import blocks, document
from cputune.text.documents import toml
from cputune.verifier import read

refused = contextlib.suppress(CputuneError)
"""An error of ours, with its sentence and its hint, is a right answer to wrong input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing that reads: strategies of its input, and a check that raises where it errs."""

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any, Path], None]
    examples: int = 30


def _hostfile(text: str, place: Path) -> None:
    with refused:
        parse_hostfile(text)
    with refused:
        parse_hosts(text)


def _machine(changes: dict[str, str | None], place: Path) -> None:
    """Facts, findings and both reports come out, whatever files say."""
    tree = _tree()
    for path, text in changes.items():
        tree.files.pop(path)  # its folder still names it: it is gone between two looks
        if text is not None:
            tree.files[path] = text
    found = diagnose(probe(tree))
    json.dumps(document(found), allow_nan=False)
    assert list(blocks(found))


def _tree() -> FakeTree:
    tree = machine(None, sockets=2, cores=2, smt=2, cgroup=Cgroup(quota=2.5))
    assert isinstance(tree, FakeTree)
    return tree


def _recipe(text: str, place: Path) -> None:
    file = place / "recipe.toml"
    file.write_text(text, encoding="utf-8")
    with refused:
        Workload.from_recipe(str(file))


def _result(text: str, place: Path) -> None:
    file = place / "cputune.json"
    file.write_text(text, encoding="utf-8")
    with refused:
        result = Result.load(file)
        for format in FORMATS:
            with refused:
                emit(result, format)
        again = place / "again.json"
        result.save(again, force=True)
        assert Result.load(again).to_json() == result.to_json()


def _launch_file(text: str, place: Path) -> None:
    for name in ("launch.sh", "launch.yaml"):
        file = place / name
        file.write_text(text, encoding="utf-8")
        with refused:
            check_file(read_document(file), name, _facts())
        with refused:
            promise_in(text)
            read(file)


@cache
def _facts() -> Any:
    return probe(machine(None, sockets=2, cores=2))


def _log(text: str, place: Path) -> None:
    """A log is explained, or shows no error; what decides is one of its lines."""
    found = explain(text)
    if found is not None:
        lines = text.count("\n") + 1
        assert 1 <= found.failure.line <= lines
        assert found.symptom.title
    with refused:
        assert list(judge_symptom(text, _facts()))


def _logs() -> tuple[str, ...]:
    file = Path(__file__).parents[1] / "doctor" / "public_errors.toml"
    return tuple(row["text"] for row in toml(file.read_text(encoding="utf-8"))["errors"])


def _hostile_job(change: tuple[str, str, str], place: Path) -> None:
    """A hostile value in what a job is asked for: its cluster, its hosts, its interpreter."""
    field, payload, format = change
    asked: dict[str, Any] = {"hosts": (Node(name="a"),), "python": "/usr/bin/python3"}
    kind = _CLUSTER.get(field, "")
    if field == "hosts":
        asked["hosts"] = (Node(name=payload),)
    elif field == "python":
        asked["python"] = payload
    elif "tuple[str, str]" in kind:
        asked["cluster"] = Cluster(**{field: ((payload, payload),)})
    with refused:
        if field in _CLUSTER and "tuple[str, str]" not in kind:
            asked["cluster"] = Cluster(**{field: (payload,) if "tuple" in kind else payload})
        _harmless(one_socket().result, format, place, workload=script_workload(), **asked)


_CLUSTER = {one.name: str(one.type) for one in fields(Cluster) if "str" in str(one.type)}


def _hostile_recording(change: tuple[float, str, bool, str], place: Path) -> None:
    """The same in a machine that somebody has recorded."""
    share, payload, as_key, format = change
    root = place / "recorded"
    if not root.exists():
        root.mkdir()
        machine(root, sockets=2, cores=2)
    record = _with_payload(json.loads(_RECORD), share, payload, as_key)
    (root / "record.json").write_text(json.dumps(record), encoding="utf-8")
    cpuinfo = f"model name\t: {payload}\n" if share > 0.9 else "model name\t: x\n"
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\n{cpuinfo}", encoding="utf-8")
    with refused:
        _harmless(None, format, place, facts=probe(RecordedHost(root)), workload=script_workload())


_RECORD = json.dumps(
    {
        "schema": "cputune.record/1",
        "python": "3.11.7",
        "affinity": "0-3",
        "environment": {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
        "packages": [{"name": "torch", "version": "2.13.0", "location": "/venv/lib"}],
        "launchers": {"mpirun": {"path": "/usr/bin/mpirun", "answer": None}},
        "files": {"/etc/hosts": "127.0.0.1 localhost"},
        "directories": {"/usr/lib64": ["libgomp.so.1"]},
        "real_paths": {"/usr/lib64/libgomp.so.1": "/usr/lib64/libgomp.so.1.0.0"},
    }
)


def _with_payload(content: Any, share: float, payload: str, as_key: bool) -> Any:
    spots = list(_spots(content))
    holder, key = spots[int(share * (len(spots) - 1))]
    if as_key and isinstance(holder, dict):
        holder[payload] = holder.pop(key)
    else:
        holder[key] = payload
    return content


def _harmless(result: Result | None, format: str, place: Path, **asked: Any) -> None:
    (place / "scratch").mkdir(exist_ok=True)
    for file in emit(result, format, mpi="openmpi5", **asked):
        _obeyed_by_nobody(file.name, file.text, place / "scratch")


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a document: what holds it, and its key there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(inner):
        yield value, key
        if isinstance(part, (dict, list)):
            yield from _spots(part)


def _obeyed_by_nobody(name: str, text: str, place: Path) -> None:
    """Hand a file to its readers: bash, dash, sbatch's directives, YAML 1.1 and 1.2, Docker's."""
    if name == "constraints.txt":
        assert not re.search(r"(?m)^(?!#|[\w.-]+==[\w.!-]+$)", text.rstrip("\n")), name
    elif name.startswith("hosts."):
        assert not re.search(r"(?m)^(?!#|[\w.:%-]+(:| slots=)\d+$)", text.rstrip("\n")), name
    elif text.startswith("#!/usr/bin/env bash"):
        (place / "launch.sh").write_text(text, encoding="utf-8")
        (place / "rank.py").touch()
        variables = {"PATH": "/usr/bin:/bin", "PYTHON": "/bin/true", "INJECTED": str(place / "it")}
        for shell in ("bash", "dash"):
            command = [shell, str(place / "launch.sh"), "--help"]
            subprocess.run(command, env=variables, cwd=place, capture_output=True, timeout=60)
            assert not (place / "it").exists(), f"{shell} obeyed {name}"
        before = takewhile(lambda line: line[:1] in ("", "#"), text.split("\n"))
        # sbatch reads none behind the first command (sbatch(1)).
        lines = [line.removeprefix("#SBATCH ") for line in before if line.startswith("#SBATCH ")]
        directives = [word.partition("=")[0] for line in lines for word in line.split()]
        assert len(set(directives)) == len(directives)
        assert "--wrap" not in directives
    elif name.endswith((".yaml", ".yml")):
        old = list(yaml.safe_load_all(text))
        assert old == list(YAML(typ="safe", pure=True).load_all(text))
        assert not any("injected" in one for one in old if isinstance(one, dict))


_PAYLOADS = st.sampled_from(
    (
        *("A\n>$INJECTED\nB", "$(>$INJECTED)", "`>$INJECTED`", "';>$INJECTED;'", '";>$INJECTED;"'),
        *("A=1;>$INJECTED #", "x)\n>$INJECTED\n(", "a\n#SBATCH --wrap=x", "\ninjected: true\n"),
        *("a: {injected: true}", "/x\nRUN touch $INJECTED", "$$INJECTED", "\u2028>$INJECTED"),
        *("A[$(>$INJECTED)]", "\r\n>$INJECTED\r\n", "EOF\n>$INJECTED\n", "--\n- injected"),
    )
)


_formats = st.sampled_from((*FORMATS, *PRINTED_FORMATS))
_anywhere = st.tuples(st.floats(0, 1), _PAYLOADS | texts, st.booleans(), _formats)


def _emitted(name: str) -> list[str]:
    case = MACHINES[name]()
    return [
        file.text
        for format in FORMATS
        for file in emit(case.result, format, facts=case.facts, **case.options)[:2]
    ]


def _trees() -> st.SearchStrategy[dict[str, str | None]]:
    """Changes to the files of a machine, limits and control groups among them."""
    sound = _tree().files
    one = st.sampled_from(sorted(sound)).flatmap(
        lambda path: st.tuples(st.just(path), st.none() | near(sound[path]))
    )
    return st.lists(one, min_size=1, max_size=5).map(dict)


_RESULT = json.dumps(one_socket().result.to_json())
_LAUNCHES = [text for text in _emitted("two-sockets-smt") if text.startswith("#")]
_LAUNCHES += [text for text in _emitted("one-socket") if "kind:" in text]

TARGETS = (
    Target(name="log", inputs=near(*_logs()), check=_log),
    Target(
        name="hostfile",
        inputs=near("a slots=2\nb:3\n# none\n[fd00::1]:4\n", "node1,node2:2"),
        check=_hostfile,
    ),
    Target(name="machine", inputs=_trees(), check=_machine),
    Target(
        name="recipe",
        inputs=near(*(file.read_text() for file in sorted(recipes_dir().glob("*.toml")))),
        check=_recipe,
    ),
    Target(name="result", inputs=near(_RESULT), check=_result),
    Target(name="launch_file", inputs=near(*_LAUNCHES), check=_launch_file),
    Target(name="hostile_recording", inputs=_anywhere, check=_hostile_recording, examples=8),
    Target(
        name="hostile_job",
        inputs=st.tuples(
            st.sampled_from((*sorted(_CLUSTER), "hosts", "python")), _PAYLOADS | texts, _formats
        ),
        check=_hostile_job,
        examples=8,
    ),
)

"""The whole script with a plan, shortened: what fails at its end is found; no file is touched."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from rows import every_row

import cputune
from cputune import Plan, Workload
from cputune.plans.layout import baseline_plan
from cputune.ranks import rehearsal
from cputune.ranks.rehearsal import (
    Rehearsed,
    compared,
    copied,
    differences,
    files_in,
    reason,
    rehearse,
    weights_apart,
)
from cputune.ranks.runner import ProcessRunner
from cputune.ranks.saved import keys_of, metrics_of
from cputune.ranks.weights import Tensor, Weights

SCRIPTS = Path(__file__).parent.parent / "scripts"


def wrote(**files: set[str] | None) -> Rehearsed:
    keys = {
        name.replace("__", "."): None if found is None else frozenset(found)
        for name, found in files.items()
    }
    return Rehearsed(written=keys)


@every_row(
    ("plan", "says"),
    [
        (wrote(model__pt={"layer.weight"}, log_0=None, log_1=None), ()),
        (wrote(model__pt={"layer.weight"}), ("it does not write log",)),
        (
            wrote(model__pt={"module.layer.weight"}, log=None),
            ("keys of model.pt begin with 'module.' (module.layer.weight)",),
        ),
        (wrote(model__pt={"bias"}, log=None), ("model.pt lacks the key layer.weight",)),
    ],
)
def test_what_a_plan_writes_is_compared_with_what_the_launch_as_typed_writes(
    plan: Rehearsed, says: tuple[str, ...]
) -> None:
    assert differences(wrote(model__pt={"layer.weight"}, log=None), plan, ranks=2) == says


@every_row("file", ["c/rng.pth", "c/rng_0.pth"])
def test_a_file_of_each_rank_is_not_missed_of_a_rank_that_the_plan_does_not_have(file: str) -> None:
    """Of two ranks Trainer writes rng_state_0.pth and rng_state_1.pth, of one rng_state.pth."""
    own = Rehearsed(written={"c/rng_0.pth": None, "c/rng_1.pth": None})
    assert differences(own, Rehearsed(written={file: None}), ranks=1) == ()


@pytest.mark.parametrize(
    ("values", "differs"),
    [
        ({"eval_loss": 0.5001, "eval_runtime": 9.0, "train_loss": 1.0}, ""),
        ({"eval_loss": 0.51, "eval_runtime": 2.0, "train_loss": 0.5}, "eval_loss in m.json"),
    ],
)
def test_values_of_an_evaluation_are_compared(
    tmp_path: Path, values: dict[str, float], differs: str
) -> None:
    typed = {"eval_loss": 0.5, "eval_runtime": 2.0, "train_loss": 0.5}
    found = []
    for content in (typed, values):
        (tmp_path / "m.json").write_text(json.dumps({"log": [content]}))
        path = tmp_path / "m.json"
        found.append(
            Rehearsed(written={"m.json": keys_of(path)}, metrics={"m.json": metrics_of(path)})
        )
    unlike, kinds = compared(*found, ranks=2, draws=False)
    assert kinds == ("files", "keys", "metrics")
    assert bool(unlike) == bool(differs)
    assert differs in "".join(unlike)
    assert compared(*found, ranks=2, draws=True) == ((), ("files", "keys"))
    assert compared(*found, ranks=5, draws=False) == ((), ("files", "keys"))


def test_the_keys_of_files_are_read_without_running_their_code(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "ran"),)

    content = {"model": {"layer.weight": Runs()}, "step": 3, 7: 0}
    saved = tmp_path / "state.pkl"
    saved.write_bytes(pickle.dumps(content))
    assert keys_of(saved) == {"model", "model.layer.weight", "step"}
    assert not (tmp_path / "ran").exists()
    metrics = tmp_path / "metrics.json"
    metrics.write_text(json.dumps({"eval": {"loss": 1}, "log": [{"a": 1}, {"b": 2}]}))
    assert keys_of(metrics) == {"eval", "eval.loss", "log", "log.a", "log.b"}
    header = json.dumps({"__metadata__": {}, "w": {"shape": [1]}}).encode()
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes(len(header).to_bytes(8, "little") + header)
    assert keys_of(tensors) == {"w"}
    for damaged in (saved, metrics, tensors):
        damaged.write_bytes(b"\x80 no such file")
        assert keys_of(damaged) is None
    assert keys_of(tmp_path / "train.log") is None


def test_a_folder_is_copied_and_what_is_large_or_next_to_it_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "LARGEST_COPIED", 10)
    folder = tmp_path / "home" / "job"
    (folder / "out").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "temporary").mkdir()
    (tmp_path / "home" / "data.txt").write_text("beside")
    (folder / "out" / "model.pt").write_text("small")
    (folder / "large.bin").write_text("more than ten")
    place = copied(folder, folder / "temporary" / "tree")
    (place / "out" / "model.pt").write_text("other")
    assert (folder / "out" / "model.pt").read_text() == "small"
    assert (place / "large.bin").is_symlink()
    assert (place / ".git").is_symlink()
    assert (place / ".." / "data.txt").read_text() == "beside"
    assert [name for name, _ in files_in(place)] == ["out/model.pt"]


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("error: the ranks are apart: x\nhint: y\nValueError: z\n", "the ranks are apart: x"),
        (
            "AttributeError: no save_pretrained\nRuntimeError: [gloo/pair.cc] closed by peer\n",
            "AttributeError: no save_pretrained",
        ),
        ("", "exit status 9"),
    ],
)
def test_the_first_cause_is_said(output: str, says: str) -> None:
    assert reason(output, 9) == says


WRITES = """
import os, sys
from pathlib import Path
for path in (Path("model.pt"), Path(os.environ["OUTSIDE"], "new.txt"), Path("link.txt")):
    try:
        path.write_text("new")
    except PermissionError:
        print("refused", path.name, file=sys.stderr)
for change in (os.remove, os.mkdir):
    try:
        change(os.path.join(os.environ["OUTSIDE"], "old.txt"))
    except PermissionError:
        print("refused", change.__name__, file=sys.stderr)
sys.exit(1)
"""


def test_files_outside_the_copy_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside, temporary = (tmp_path / name for name in ("job", "outside", "temporary"))
    for place in (folder, outside, temporary):
        place.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))  # a script may write there
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OUTSIDE", str(outside))
    (folder / "model.pt").write_text("old")
    (folder / "link.txt").symlink_to(outside / "linked.txt")
    (folder / "train.py").write_text(WRITES)
    facts = cputune.probe()
    job = Workload.script(["train.py"])
    ended = rehearse(job, baseline_plan(facts), facts, seconds=60)
    assert (folder / "model.pt").read_text() == "old"
    assert set(ended.written) == {"model.pt"}
    assert ended.failed == "refused mkdir", "the last line that it wrote"
    assert not list(outside.iterdir())


@pytest.mark.torch
def test_a_script_that_does_not_end_is_ended(workdir: Path) -> None:
    (workdir / "train.py").write_text("import time\ntime.sleep(100)")
    facts = cputune.probe()
    ended = rehearse(Workload.script(["train.py"]), baseline_plan(facts), facts, seconds=3)
    assert ended.failed == "it had not ended after 3 s"


FAULTS = [
    pytest.param("ends/saves.py", "unwrapped", "", id="sound"),
    pytest.param(
        "ends/saves.py",
        "wrapped",
        "AttributeError: 'DistributedDataParallel' object has no attribute 'save_pretrained'",
        id="save_pretrained",
    ),
    pytest.param("ends/saves.py", "keys", "begin with 'module.'", id="module"),
    pytest.param("ends/saves.py", "metrics", "metrics.json lacks the key accuracy", id="metrics"),
    pytest.param("ends/saves.py", "half", "eval_loss in out/metrics.json is", id="half"),
    pytest.param("ends/saves.py", "folds", "", id="folds"),
    pytest.param("ends/saves.py", "counts", "", id="counts-its-batches"),
    pytest.param("ends/decides.py", "nothing", "", id="sound-weights"),
    pytest.param("ends/decides.py", "margin", "its weights are apart by", id="margin"),
    pytest.param("ends/decides.py", "later", "its weights are apart by", id="contrast-later"),
    pytest.param("ends/decides.py", "world", "its weights are apart by", id="world-size"),
    pytest.param("ends/decides.py", "count", "its buffer seen is apart by", id="buffer"),
    pytest.param("ends/breaks.py", "", "the ranks are apart: they wait for each", id="break"),
]


def two_ranks(facts: cputune.HostFacts) -> Plan:
    cpus = facts.topology.allowed
    shares = (cpus[:1], cpus[1:2] or cpus[:1])
    return Plan(processes_per_node=2, threads_per_process=1, cpus=shares)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("script", "word", "says"), FAULTS)
def test_what_fails_at_the_end_of_a_script_is_found(
    workdir: Path, script: str, word: str, says: str
) -> None:
    facts = cputune.probe()
    job = Workload.script(list(filter(None, [str(SCRIPTS / script), word])))
    seen = replace(job, framework="accelerate", global_batch_size=8, accumulation=1)
    with ProcessRunner(seen, facts, offline=True) as runner:
        end = runner.rehearse(two_ranks(facts), 120.0)
    assert says in end.failed
    assert bool(end.failed) == bool(says)
    assert not list(workdir.iterdir()), "nothing is written to the folder of the launch"


def trained(*, moved: float, steps: int = 3, biases: float = 0.0) -> Weights:
    """100 numbers of a matrix and 2 of a bias, which go from 0 to 1, and a counter."""
    ends = {"layer": [1 + moved] * 100, "bias": [1 + biases] * 2}
    tensors = {
        f"0.{name}": Tensor(
            kind="parameter",
            numbers=len(end),
            start=array("d", [0.0] * len(end)),
            end=array("d", end),
        )
        for name, end in ends.items()
    }
    tensors["0.seen"] = Tensor(
        kind="buffer", numbers=1, start=array("d", [0.0]), end=array("d", [8.0 + 8 * moved])
    )
    return Weights(steps=steps, tensors=tensors)


def test_weights_are_apart_if_rounding_alone_does_not_explain_it() -> None:
    typed = Rehearsed(weights=trained(moved=0.0))

    def judged(plan: Weights, rounded: Weights | None = None) -> str | None:
        return weights_apart(typed, Rehearsed(weights=plan), lambda: Rehearsed(weights=rounded))

    assert judged(trained(moved=1e-6)) == ""
    assert judged(trained(moved=0.0, biases=0.9)) == "", "the bias of keys is rounding alone"
    assert "its weights are apart by 0.01 of the way" in str(judged(trained(moved=0.01)))
    assert judged(trained(moved=0.01), trained(moved=-0.01)) == "", "so is this launch by itself"
    assert judged(trained(moved=0.01, steps=2)) is None
    assert weights_apart(typed, Rehearsed(), lambda: None) is None


def test_nothing_is_rehearsed_with_the_ranks_of_the_launch_as_typed() -> None:
    facts = cputune.probe()
    with ProcessRunner(Workload.from_recipe("bert-mini"), facts) as runner:
        assert runner.rehearse(two_ranks(facts), 60.0) is None
        assert runner.rehearse(baseline_plan(facts), 60.0) is None

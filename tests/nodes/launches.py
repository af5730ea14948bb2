"""What the tests of two hosts launch: two ranks on each, of a witness or of a small recipe."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from consumers.launches import HOSTILE, TINY, result_of, two_ranks

import cputune
from cputune import Workload
from cputune.emitters import parse_hosts

WITNESS = Path(__file__).parents[1] / "consumers" / "witness.py"


def write(directory: Path, format: str, workload: Workload) -> Path:
    """The launch of two ranks on each of two hosts; returns what is started."""
    files = cputune.emit(
        result_of(two_ranks(), workload),
        format,
        nodes=2,
        hosts=parse_hosts("alpha,beta"),
        cluster=cputune.Cluster(interface="eth0"),
        python=sys.executable,
    )
    for file in files:
        (directory / file.name).write_text(file.text)
        (directory / file.name).chmod(0o755 if file.executable else 0o644)
    return directory / f"{format}.sh"


def witnessed(directory: Path) -> Workload:
    (directory / "seen").mkdir()
    argv = (str(WITNESS), str(directory / "seen"), *HOSTILE)
    script = Workload(name=WITNESS.name, argv=argv)
    return script.observed(framework="trainer", global_batch_size=8, parses_arguments=False)


def assert_four_ranks(directory: Path) -> None:
    seen = [json.loads(path.read_text()) for path in sorted((directory / "seen").iterdir())]
    assert [rank["host"] for rank in seen] == ["alpha", "alpha", "beta", "beta"]
    assert [rank["sum"] for rank in seen] == [10.0] * 4
    assert [tuple(rank["affinity"]) for rank in seen] == list(two_ranks().cpus) * 2
    assert [rank["arguments"] for rank in seen] == [list(HOSTILE)] * 4


def tiny(directory: Path) -> Workload:
    (directory / "tiny.toml").write_text(TINY)
    return Workload.from_recipe(str(directory / "tiny.toml"))

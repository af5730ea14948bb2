"""The commands of a result can be pasted: each word is one word, and a secret stays a variable."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

import pytest
from report.result_cases import tuned

from cputune.options import TuneOptions
from cputune.report.show import install_command, launch_commands, tune_command
from cputune.workload import Workload


def test_a_file_of_any_name_is_one_word() -> None:
    for command in launch_commands("my results/a; b.json"):
        assert shlex.split(command)[-1] == "my results/a; b.json"


def test_the_study_of_a_recipe_is_made_again_with_what_was_asked_for() -> None:
    result = tuned()
    assert tune_command(result) == "cputune tune --budget 12 --seed 0 --recipe bert-mini"
    job = replace(result.workload, batch_per_rank=4)
    options = TuneOptions(knobs=("padding", "threads"), fix={"precision": "bf16"}, keep="numbers")
    assert "--knobs padding,threads --fix precision=bf16 --keep numbers --recipe" in tune_command(
        replace(result, asked=options.search_words)
    )
    known = TuneOptions(price_per_hour=0.5, allow_slow_precision=True)
    assert known.search_words == (
        "--price-per-hour", "0.5", "--allow-slow-precision",
    )  # fmt: skip
    assert TuneOptions(knobs=[], budget=3, seed=4, study="s.db", resume=True).search_words == ()
    for limit, words in ((90.0, "--max-time 90s"), (math.inf, "--max-time none")):
        assert " ".join(TuneOptions(max_time_seconds=limit).search_words) == words
    assert "--batch-per-rank 4 --recipe" in tune_command(replace(result, workload=job))
    job = replace(result.workload, global_batch_size=64)
    assert "--global-batch-size 64 --recipe" in tune_command(replace(result, workload=job))


def test_the_study_of_a_script_has_its_launcher_and_hides_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "")  # put back what Workload.script sets
    words = [
        "torchrun",
        "train.py",
        "--run_name",
        "a b",
        "--hub_token=hf_" + "a1B2c3D4e5F6g7H8i9" * 2,
    ]
    command = tune_command(replace(tuned(), workload=Workload.script(words)))
    assert command == (
        "cputune tune --budget 12 --seed 0 -- "
        "torchrun train.py --run_name 'a b' --hub_token=\"$HUB_TOKEN\""
    )


def test_versions_are_installed_from_where_they_lie() -> None:
    versions = {"python": "3.11.7", "cputune": "0.1.0", "torch": "2.13.0", "accelerate": "1.15.0"}
    assert install_command(versions) == "pip install accelerate==1.15.0 torch==2.13.0"
    assert "whl/cpu" in (install_command({**versions, "torch": "2.13.0+cpu"}) or "")
    assert install_command({"python": "3.11.7"}) is None
    assert shlex.split(install_command({"x; rm": "1"}) or "")[2:] == ["x; rm==1"]


def test_a_study_over_hosts_names_them_and_its_plan_is_launched_over_them() -> None:
    assert "--hosts node1,node2 " in tune_command(replace(tuned(), hosts=("node1", "node2")))
    assert launch_commands("cputune.json", nodes=2)[0].endswith("&& sh launch/mpirun.sh")

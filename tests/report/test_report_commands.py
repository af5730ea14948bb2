"""The commands of a result can be pasted: each word is one word, and a secret stays a variable."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

from report.result_cases import tuned

from cputune.options import TuneOptions
from cputune.report.show import basis, launch_commands


def test_a_file_of_any_name_is_one_word() -> None:
    for command in launch_commands("my results/a; b.json"):
        assert shlex.split(command)[-1] == "my results/a; b.json"


def test_what_narrowed_a_search_is_told_as_it_is_typed() -> None:
    options = TuneOptions(knobs=("padding", "threads"), fix={"precision": "bf16"}, keep="numbers")
    words = "--knobs padding,threads --fix precision=bf16 --keep numbers"
    assert " ".join(options.search_words) == words
    assert dict(basis(replace(tuned(), asked=options.search_words)))["search"].endswith(words)
    known = TuneOptions(price_per_hour=0.5, allow_slow_precision=True)
    assert known.search_words == (
        "--price-per-hour", "0.5", "--allow-slow-precision",
    )  # fmt: skip
    assert TuneOptions(knobs=[], budget=3, seed=4, study="s.db", resume=True).search_words == ()
    for limit, words in ((90.0, "--max-time 90s"), (math.inf, "--max-time none")):
        assert " ".join(TuneOptions(max_time_seconds=limit).search_words) == words


def test_a_plan_over_hosts_is_launched_over_them() -> None:
    assert launch_commands("cputune.json", nodes=2)[0].endswith("&& sh launch/mpirun.sh")

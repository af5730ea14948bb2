"""Quantities of a cluster: read as people type them, refused in words."""

from __future__ import annotations

import pytest
from rows import every_row

import cputune
from cputune import UsageError
from cputune.text.quantities import bytes_of, kubernetes_memory, slurm_time


@every_row(
    ("typed", "written"),
    [
        *(("32Gi", "32Gi"), ("8GB", "8G"), ("8 GiB", "8Gi"), ("1.5Ti", "1.5Ti"), ("500M", "500M")),
        *(("8gb", "8G"), ("8gib", "8Gi"), ("8000000000", "8000000000")),
    ],
)
def test_an_amount_of_memory_is_written_as_kubernetes_reads_it(typed: str, written: str) -> None:
    assert kubernetes_memory(typed) == written
    assert cputune.Cluster(memory=typed).memory == written
    assert bytes_of(written) is not None


@every_row(
    "typed",
    [
        "8",
        "8g",
    ],
)
def test_what_is_no_amount_of_memory_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--memory") as refused:
        cputune.Cluster(memory=typed)
    assert (refused.value.hint or "").startswith("--memory ")


def test_what_is_no_time_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="--time"):
        cputune.Cluster(time_limit="00:00:00")


@every_row(
    ("typed", "written"),
    [
        *(("04:00:00", "04:00:00"), ("90", "90"), ("1-12", "1-12"), ("2-00:30", "2-00:30")),
        *(("4h", "04:00:00"), ("90m", "01:30:00"), ("1d2h", "26:00:00"), ("infinite", "infinite")),
    ],
)
def test_a_time_limit_is_written_as_slurm_reads_it(typed: str, written: str) -> None:
    assert slurm_time(typed) == written
    assert cputune.Cluster(time_limit=typed).time_limit == written

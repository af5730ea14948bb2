"""What lies beside a launch: what its command loads, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emit_machines import one_socket, script_workload

from cputune.emitters import emit
from cputune.workload import Framework


@pytest.mark.parametrize(
    ("framework", "there"),
    [(None, True), ("lightning", True), ("accelerate", False), ("trainer", False)],
)
def test_what_is_set_in_lightning_comes_where_a_script_may_train_with_it(
    framework: Framework | None, there: bool
) -> None:
    workload = replace(script_workload(), framework=framework, parses_arguments=None)
    names = {file.name for file in emit(one_socket().result, "torchrun", workload=workload)}
    assert "carry.py" in names
    assert ("in_lightning.py" in names) is there

"""The worker threads of oneCCL, told from the other threads of a process."""

import os

import pytest

from cputune.inside.state import ccl_workers

OWN = os.getpid()


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A process as the kernel shows it: names and CPUs of its threads, the main one first."""

    def make(*threads):
        places = {OWN + number: cpus for number, (_, cpus) in enumerate(threads)}
        monkeypatch.setattr(os, "sched_getaffinity", places.__getitem__)
        for number, (name, _) in enumerate(threads):
            (tmp_path / str(OWN + number)).mkdir()
            (tmp_path / str(OWN + number) / "comm").write_text(f"{name}\n")
        return str(tmp_path)

    return make


MAIN, POOL, AUTOGRAD = ("python", {1, 2}), ("python", {1, 2}), ("pt_autograd_0", {0})


def test_a_worker_is_bound_to_one_cpu_and_has_no_name(process):
    assert ccl_workers({}, process(MAIN, POOL, ("python", {3}), ("python", {0}), AUTOGRAD)) == (
        [0, 3],
        "",
    )


def test_oneccl_that_has_switched_its_workers_off_has_none(process):
    assert ccl_workers({}, process(MAIN, POOL, AUTOGRAD)) == ([], "")


def test_on_one_cpu_a_worker_of_that_cpu_is_not_known(process):
    found, why = ccl_workers({}, process(("python", {1}), ("python", {1})))
    assert found is None
    assert "one CPU" in why


def test_a_worker_elsewhere_is_known_though_the_rank_has_one_cpu(process):
    assert ccl_workers({}, process(("python", {1}), ("python", {0}))) == ([0], "")


def test_threads_that_openmp_binds_are_not_taken_for_workers(process):
    bound = process(MAIN, ("python", {1}), ("python", {2}))
    found, why = ccl_workers({"OMP_PROC_BIND": "close"}, bound)
    assert found is None
    assert "OMP_PROC_BIND" in why

"""The first minutes of somebody who types what comes to mind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from in_process import Run
from report.result_cases import tuned

import cputune as library
from cputune import Result, Verification
from cputune.host.facts import Package
from cputune.records.claims import host_fingerprint
from cputune.records.shared_texts import changed_since, slower_by
from cputune.verifier.records import Outcome, Ratio

pytestmark = pytest.mark.usefixtures("workdir")


def test_help_is_there_under_each_of_its_names(cputune: Run) -> None:
    assert cputune().out == cputune("-h").out == cputune("--help").out
    assert cputune("tune", "-h").out == cputune("tune", "--help").out


def test_speeds_of_another_machine_are_no_reason_to_pass_or_fail_a_guard(cputune: Run) -> None:
    replace(tuned(), created=None).save("before.json")
    tuned().save("after.json")
    ended = cputune("compare", "before.json", "after.json")
    assert ended.code == 0
    assert "the first was measured on another machine" in " ".join(ended.out.split())
    assert "times as fast" not in ended.out
    ended = cputune("compare", "before.json", "after.json", "--fail-if-slower", "5%")
    assert ended.code == 3
    assert "cputune tune, on this machine" in ended.err


def test_what_has_changed_since_it_was_tuned_is_a_reason_to_tune_again(cputune: Run) -> None:
    facts = replace(library.probe(), packages=(Package(name="torch", version="2.13.0"),))
    assert facts.settings.kernel is not None
    host = host_fingerprint(facts)
    result = replace(tuned(), host=host, kernel=facts.settings.kernel, versions={})
    assert changed_since(result, facts) == ()
    replace(result, kernel="4.18.0-old").save("cputune.json")
    why = f"kernel 4.18.0-old → {facts.settings.kernel}"
    assert changed_since(Result.load("cputune.json"), facts) == (why,)
    shown = " ".join(cputune("show").out.split())
    assert f"{why}: tune again" in shown
    for changed, says in (
        ({"versions": {"torch": "1.0"}}, "torch 1.0 → "),
        ({"microcode": "0x1"}, "microcode 0x1 → 0x2"),
    ):
        now = replace(facts, cpu=replace(facts.cpu, microcode="0x2"))
        (said,) = changed_since(replace(result, **changed), now)
        assert said.startswith(says)


@pytest.mark.parametrize(("high", "code"), [(0.94, 1), (0.96, 0)])
def test_verify_ends_with_1_if_more_is_lost_than_was_allowed(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, high: float, code: int
) -> None:
    speed = Ratio(ratio=0.9, low=0.88, high=high, measured=9.0, tuned=10.0, steps=12)
    passed = Outcome(name="affinity", state="passed", summary="0 | 1")
    seen = Verification(path="launch/a.sh", format="mpirun", checks=(passed,), throughput=speed)
    monkeypatch.setattr("cputune.verifier.verify", lambda *paths, **options: (seen,))
    replace(tuned(), microcode="0x0", host={}, versions={}).save("cputune.json")
    words = ("verify", "launch", "--baseline", "cputune.json", "--fail-if-slower", "5%")
    ended = cputune(*words)
    assert ended.code == code
    assert ("slower by more than 5% than it was tuned: launch/a.sh" in ended.err) is bool(code)


def test_a_share_is_read_as_people_write_it(cputune: Run) -> None:
    assert slower_by("5%") == slower_by("0.05") == 0.05
    refused = cputune("compare", "a", "b", "--fail-if-slower", "much")
    assert "hint: --fail-if-slower 5%" in refused.err


def test_hosts_are_named_by_their_names_from_python() -> None:
    job = library.Workload.from_recipe("bert-base-squad")
    with pytest.raises(library.UsageError, match="twice"):
        library.tune(job, hosts="alpha,alpha")


def test_a_script_given_as_a_result_gets_the_command_for_scripts(cputune: Run) -> None:
    for words in (("run", "train.py"), ("emit", "--format", "torchrun", "train.py")):
        ended = cputune(*words)
        assert ended.code == 2
        assert "-- train.py" in ended.err
    assert "cputune tune -- train.py" in cputune("show", "train.py").err

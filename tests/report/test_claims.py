"""A ratio is printed with what it was measured on, and in no other context: contexts x printers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import changed
from emitters.emit_machines import one_socket
from golden_texts import Golden
from report.result_cases import printed
from rows import every_row

import cputune
from cputune import Cluster, HostFacts, Kept, Result, Workload
from cputune.cli.run import _how
from cputune.emitters import FORMATS
from cputune.emitters.format import Emission
from cputune.emitters.like import like
from cputune.host.facts import Package
from cputune.records.claims import Speedup
from cputune.records.result import Worth
from cputune.report.notebook import html_of
from cputune.report.page import page
from cputune.report.show import ResultToShow, blocks, document, history_rows

RATIO = re.compile(r"\b1\.57\b|×1\.\d")
"""The ratio of the result below, and those of its changes."""

SCRIPT = ("train.py", "--lr", "3e-5")
CASE = one_socket()
FACTS = replace(
    CASE.facts,
    packages=tuple(
        Package(name=name, version=version, location=None)
        for name, version in CASE.result.versions.items()
    ),
)


def measured() -> Result:
    """1.57 times as fast, measured for train.py with 12 samples a step."""
    job = replace(
        Workload.script(list(SCRIPT)),
        framework="trainer",
        parses_arguments=True,
        global_batch_size=12,
        data=1000,
    )
    gain = Speedup(ratio=1.3, low=1.2, high=1.4, pairs=5)
    worth = Worth(knob="precision", value="bf16", speedup=gain)
    return replace(CASE.result, workload=job, worth=(worth,))


@dataclass(frozen=True)
class Elsewhere:
    """Another context than that of the measurement; ``says`` is what is named as not measured."""

    says: str
    workload: Workload | None = None
    facts: HostFacts = FACTS
    nodes: int | None = None


HERE = measured()
OTHER_SCRIPT = replace(HERE.workload, name="run_qa.py", argv=("run_qa.py", "--lr", "3e-5"))
OTHER_WORDS = replace(HERE.workload, argv=("train.py", "--lr", "1e-5", "--max_length", "512"))
OTHER_TORCH = changed(FACTS, packages={"torch": "2.15.0"})
OTHER_DATA = replace(HERE.workload, data=5)
OTHER_CPU = replace(FACTS, cpu=replace(FACTS.cpu, model_name="Another Xeon"))
LAUNCHES = {
    "another script": Elsewhere("not measured for run_qa.py", workload=OTHER_SCRIPT),
    "other arguments": Elsewhere("not measured with these arguments", workload=OTHER_WORDS),
    "other data": Elsewhere("not measured for 5 samples of data", workload=OTHER_DATA),
    "another machine": Elsewhere("not measured on this machine", facts=OTHER_CPU),
    "two nodes": Elsewhere("not measured on 2 nodes", nodes=2),
    "another torch": Elsewhere("not measured with torch 2.15.0", facts=OTHER_TORCH),
}


def flat(text: str) -> str:
    """A text without line breaks and comment signs, as it is read."""
    lines = (line.strip().removeprefix("#").strip() for line in text.splitlines())
    return " ".join(" ".join(lines).split())


def emitted(format: str, asked: dict[str, Any]) -> str:
    """All files of a format for people; the line for programs is left out."""
    files = cputune.emit(HERE, format, **asked)
    text = "\n".join(file.text for file in files if not file.name.endswith(".py"))
    return re.sub(r".*cputune-plan.*", "", text)


def asked_of(context: Elsewhere, **more: Any) -> dict[str, Any]:
    # A pod beside a kubelet's reserve has fewer threads than were measured: another plan.
    whole = Cluster(reserve_cpus=0)
    found = {"facts": context.facts, "workload": context.workload, "cluster": whole, **more}
    if context.nodes is not None:
        found["nodes"] = context.nodes
        found["hosts"] = cputune.emitters.parse_hosts("a,b")
    return found


def with_image(context: Elsewhere) -> str:
    cluster = Cluster(image="registry.example/train:1", pvc="data", reserve_cpus=0)
    return emitted("pytorchjob", asked_of(context, cluster=cluster))


def own_file(context: Elsewhere) -> str:
    job = context.workload or HERE.workload
    asked = Emission(**asked_of(context))
    return like(f"python {' '.join(job.argv)}\n", "run.sh", HERE, asked).text


PRINTERS: dict[str, Callable[[Elsewhere], str]] = {
    **{
        format: (lambda context, format=format: emitted(format, asked_of(context)))
        for format in FORMATS
    },
    "image and volume": with_image,
    "--like": own_file,
}


@every_row("printer", PRINTERS)
@every_row("context", LAUNCHES)
def test_a_launch_in_another_context_has_no_ratio(context: str, printer: str) -> None:
    if (context, printer) == ("two nodes", "--like"):
        return  # a file of several nodes is not changed
    text = flat(PRINTERS[printer](LAUNCHES[context]))
    assert not RATIO.search(text)
    assert "easured for train.py on Intel(R) Xeon(R) w5-3425" in text
    assert LAUNCHES[context].says in text
    assert "samples_per_second" not in text


@every_row("printer", PRINTERS)
def test_a_launch_in_the_same_context_has_the_ratio_and_what_it_was_measured_on(
    printer: str,
) -> None:
    text = flat(PRINTERS[printer](Elsewhere("")))
    assert "1.57 times" in text
    assert "easured for train.py on Intel(R) Xeon(R) w5-3425" in text
    assert "not measured" not in text


def first_lines(text: str) -> str:
    return flat(text)[:400]


@pytest.mark.parametrize("context", ["another machine", "another torch"])
def test_a_result_that_is_shown_elsewhere_says_where_it_was_measured(
    context: str, golden: Golden
) -> None:
    facts = LAUNCHES[context].facts
    for text in (
        printed(blocks(ResultToShow(result=HERE, facts=facts))),
        str(document(ResultToShow(result=HERE, facts=facts))["verdict"]),
        re.sub(r"<[^>]*>", "", page(HERE, facts=facts).partition("<h1>")[2]),
    ):
        assert first_lines(text).startswith("Measured for train.py on Intel(R) Xeon(R) w5-3425")
        assert LAUNCHES[context].says.removeprefix("not ") in first_lines(text)
    golden(ResultToShow(result=HERE, facts=facts).verdict().do)


def test_a_notebook_says_where_it_was_measured() -> None:
    text = re.sub(r"<[^>]*>", "", html_of(HERE))
    assert first_lines(text).startswith("Measured for train.py on Intel(R) Xeon(R) w5-3425")


@every_row("context", LAUNCHES)
def test_run_says_a_ratio_in_its_own_context_alone(context: str) -> None:
    there = LAUNCHES[context]
    plan = replace(HERE.best.plan, nodes=there.nodes or 1)
    text = _how(HERE, plan, there.workload or HERE.workload, there.facts)
    assert not RATIO.search(text)
    assert there.says in text
    assert "1.57 times" in _how(HERE, HERE.best.plan, HERE.workload, FACTS)


def test_another_plan_has_no_ratio() -> None:
    by_hand = HERE.to_json()
    by_hand["best"]["plan"]["precision"] = "fp32"
    read = Result.from_json(by_hand)
    assert read.outcome == "not_compared"
    assert not RATIO.search(flat(cputune.emit(read, "torchrun", facts=FACTS)[0].text))
    other = replace(HERE.best.plan, precision="fp32")
    assert "not measured with this plan" in _how(HERE, other, HERE.workload, FACTS)


def test_a_script_that_was_changed_since_has_no_ratio(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from transformers import Trainer\n")
    job = replace(HERE.workload, argv=(str(script),), name="train.py")
    known = replace(HERE, workload=job, files={str(script): "0" * 16})
    text = flat(cputune.emit(known, "torchrun", facts=FACTS, host=cputune.host.LiveHost())[0].text)
    assert "not measured since " in text
    assert not RATIO.search(text)


def test_a_list_of_results_names_machine_and_work_beside_each_gain() -> None:
    (row,) = history_rows((Kept(id="1", result=HERE),)).rows
    assert row == ("1", "Intel(R) Xeon(R) w5-3425, 1 socket, 8 cores, 8 CPUs", "train.py", row[3])
    assert row[3].startswith("×1.57")


def test_showing_prints_the_same_verdict() -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        cputune.show(HERE)
    assert "1.57 times as fast as your current launch" in out.getvalue()

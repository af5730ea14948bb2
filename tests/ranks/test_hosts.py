"""A plan over two hosts is one job: its trial is the emitted launch, and nothing of it stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from golden_texts import Golden
from nodes.fakes import FakeReach

import cputune
from cputune import (
    CannotError,
    Cluster,
    CputuneError,
    EmittedFile,
    HostFacts,
    Node,
    Plan,
    TrialError,
    Unreachable,
    UsageError,
    Workload,
)
from cputune.doctor.hosts.network import Rate
from cputune.emitters.format import Emission
from cputune.host import Host, this_interpreter
from cputune.host.facts import Link, Network
from cputune.host.remote.ask import script_text, sent_lines
from cputune.host.remote.probed import Probed, probe_each
from cputune.host.remote.reach import Mpirun, Srun
from cputune.inside import applying_script
from cputune.ranks import engines, hosts
from cputune.ranks.hosts import RankHosts, interface_between, open_hosts
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import HostLost, Infeasible

LIGHT = Path(__file__).parent.parent / "faults" / "light.py"
CPUS = sorted(os.sched_getaffinity(0))
TWO = Plan(nodes=2, processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
FIRST_ALONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
NAMES = ("127.0.0.1", "localhost")
RECIPE = Workload.from_recipe("bert-mini")
JOB = Workload.script([str(LIGHT), "0.002"])


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


def two(facts: HostFacts) -> RankHosts:
    """Two names of this machine."""
    found = [Probed(node=Node(name=name), facts=facts) for name in NAMES]
    return RankHosts(hosts=found, reach=FakeReach())


@pytest.fixture
def runner(facts: HostFacts) -> Iterator[ProcessRunner]:
    with ProcessRunner(JOB, facts, hosts=two(facts), offline=True) as runner:
        yield runner
    assert not training()


def training() -> list[psutil.Process]:
    """The ranks that run on this machine, whoever has started them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
            if words[-2:-1] == [str(LIGHT)] and "torch.distributed.run" not in words:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.torch
def test_the_ranks_of_all_hosts_are_one_job_and_a_lost_host_ends_it(
    runner: ProcessRunner, facts: HostFacts
) -> None:
    with closing(runner.steps(TWO)) as steps:
        assert next(steps).samples == 8
        assert [state["world_size"] for state in runner.observed()] == [2, 2]
        assert [state["affinity"] for state in runner.observed()] == [str(CPUS[0])] * 2
        away = max(psutil.Process().children(recursive=True), key=_is_way)
        away.send_signal(19)
        folder = next(child.environ()["TMPDIR"] for child in away.children())
        away.kill()
        with pytest.raises(
            HostLost, match=r"was lost: .*, which connects to it, ended with SIGKILL"
        ):
            list(islice(steps, 100_000))
    assert not training()
    shutil.rmtree(folder)  # what would have removed it was killed here; a lost host keeps it


def _is_way(process: psutil.Process) -> tuple[bool, int]:
    """Of those that lead to a host the one to the second."""
    words = process.cmdline()
    return len(words) > 2 and words[1] == "-c" and "zlib" in words[2], process.pid


@pytest.mark.torch
def test_side_by_side_the_ranks_of_hosts_wait_for_their_turn(runner: ProcessRunner) -> None:
    with closing(runner.living(FIRST_ALONE)) as living:
        assert len(living.turn(3)) == 3
        (rank,) = training()
        before = rank.cpu_times().user
        time.sleep(0.5)
        assert rank.cpu_times().user - before < 0.2  # it waits, and computes nothing
        assert len(living.turn(3)) == 3
    assert not training()


def test_a_plan_for_more_hosts_than_there_are_is_infeasible(
    runner: ProcessRunner, golden: Golden
) -> None:
    three = Plan(nodes=3, processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
    with golden.raises(Infeasible):
        next(runner.steps(three))


@pytest.mark.parametrize(
    "engine",
    [
        engines.Held(FakeReach()),
        engines.FromHere(Srun(), "slurm"),
        engines.FromHere(Mpirun(dialect="mpich")),
        engines.FromHere(Mpirun(dialect="openmpi4")),
        engines.FromHere(Mpirun(dialect="intelmpi")),
        engines.FromHere(Mpirun(dialect="mpich"), "accelerate"),
        engines.FromHere(Mpirun(dialect="openmpi4"), "accelerate"),
    ],
    ids=lambda engine: f"{engine.format}, {getattr(engine.reach, 'dialect', 'none')}",
)
def test_a_trial_is_the_emitted_launch_with_variables_that_report(
    engine: Any, facts: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ask_each", lambda *_: ())
    job = RECIPE.observed(framework="trainer", global_batch_size=8, parses_arguments=True)
    nodes = tuple(Node(name=name) for name in ("alpha", "beta"))
    format, reach = engine.format, engine.reach
    through = isinstance(reach, Mpirun)
    mpi = reach.dialect if through else None
    asked = Emission(
        facts=facts,
        hosts=nodes,
        python=sys.executable,
        cluster=Cluster(interface="eth0"),
        mpi=mpi,
        no_guard=True,  # trials compare their ranks themselves
    )
    files = cputune.emitters.render(TWO, job, format, asked)
    if engine == engines.engine_of(reach, TWO):
        assert files == engines.render_for(engine, TWO, job, facts, nodes, "eth0")
    report = {"CPUTUNE_TRIAL_SOCKET": "relay:{folder}/socket", "CPUTUNE_TRIAL_TURNS": "1"}
    environment = {"PATH": "/usr/bin", "HF_HOME": "/data", "HOME": "/home/me"}
    launch = engines.Launch(
        plan=TWO,
        nodes=nodes,
        files=files,
        variables=report,
        report_socket=str(tmp_path / "socket"),
        environment=environment,
        folder=tmp_path / "launch-1",
    )
    held = format == "torchrun"
    for number, command in enumerate(engine.start(launch)):
        assert "tcp:" not in str(command["argv"])
        if command.get("host"):
            assert command["relay"] == str(tmp_path / "socket")
            socket = str(tmp_path / "launch-1/socket")
            asked = {"relay": socket, "place": script_text("place.py")}
            assert engines_question(command["input"])[1] == asked
        elif held:
            assert command["relay"] == str(tmp_path / "socket")
            script, question = engines_question(command["input"])
            assert "tempfile.mkdtemp" in script
            argv, told = question["argv"], question["env"]
            written = {
                name.removeprefix("launch/"): text
                for name, text in question["files"].items()
                if name.startswith("launch/")
            }
            folder, own = "{folder}", {"NODE_RANK": str(number), "PORT": told["PORT"]}
            kept = {n: v for n, v in environment.items() if n != "HOME"}
        else:
            argv, told = command["argv"], command["env"]
            folder = str(tmp_path / "launch-1")
            written = {p.name: p.read_text() for p in (tmp_path / "launch-1/launch").iterdir()}
            own = {}
            if format == "slurm":
                own = {"LAUNCH_DIR": f"{folder}/launch", "LAUNCH_NODES": "alpha,beta"}
            kept = dict(environment)
            if through:
                kept["PATH"] = f"{folder}/bin:/usr/bin"  # an ssh that hands variables on
        if command.get("host"):
            continue
        assert argv == ["bash", f"{folder}/launch/{files[0].name}"]
        assert written == {file.name: file.text for file in files}
        site = {"PYTHONPATH": f"{folder}/lib/cputune/inside/site"}
        placed = {name: value.replace("{folder}", folder) for name, value in report.items()}
        assert told == {**kept, **placed, **site, **own}


WITNESS = """import json, os, sys
place = f"{sys.argv[1]}/{os.environ.get('RANK', '0')}.json"
given = open("/proc/self/environ").read().split(chr(0))[:-1]
json.dump([sys.argv, dict(one.split("=", 1) for one in given)], open(place, "w"))
"""

OF_LAUNCHERS = re.compile(
    "TORCHELASTIC_.*|(GROUP|ROLE)_.*|NCCL_.*|TORCH_NCCL_.*|ACCELERATE_.*|FORK_LAUNCHED|"
    "MASTER_PORT|SHLVL|_|PWD|OLDPWD|COLUMNS|LINES"
)
"""What torchrun, accelerate and a shell set by themselves, and a port, another one each time."""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "format"),
    [(1, "torchrun"), (2, "torchrun"), pytest.param(1, "accelerate", marks=pytest.mark.matrix)],
)
def test_a_rank_of_this_machine_has_what_the_emitted_launch_gives_it(
    ranks: int, format: str, facts: HostFacts, tmp_path: Path
) -> None:
    cpus = ((CPUS[0],), (CPUS[-1],))[:ranks]
    plan = Plan(processes_per_node=ranks, threads_per_process=1, cpus=cpus)
    script = tmp_path / "train.py"
    script.write_text(WITNESS)

    def job(folder: Path) -> Workload:
        folder.mkdir()
        given = Workload(name="train.py", argv=(str(script), str(folder), "a b", "$HOME"))
        return given.observed(framework="trainer", global_batch_size=8, parses_arguments=False)

    tried, launched = tmp_path / "tried", tmp_path / "launched"
    with (
        ProcessRunner(job(tried), facts, fresh=True, offline=False) as runner,
        pytest.raises(TrialError),
        closing(runner.steps(plan)) as steps,
    ):
        next(steps)
    asked = Emission(facts=facts, python=sys.executable)
    for file in cputune.emitters.render(plan, job(launched), format, asked):
        (tmp_path / file.name).write_text(file.text)
    subprocess.run(["bash", str(tmp_path / f"{format}.sh")], check=True, timeout=120)
    for rank in range(ranks):
        argv, told = json.loads((tried / f"{rank}.json").read_text())
        words, given = json.loads((launched / f"{rank}.json").read_text())
        assert [word.replace(str(tried), str(launched)) for word in argv] == words
        if ranks == 1:
            given.pop("MASTER_ADDR", None)  # it meets nobody
        ours = {n for n in told if n.startswith("CPUTUNE_TRIAL_")}
        assert ours
        both = (
            {n: v for n, v in each.items() if n not in ours and not OF_LAUNCHERS.fullmatch(n)}
            for each in (told, given)
        )
        assert next(both) == next(both)


def test_what_is_sent_to_a_host_fits_into_a_pipe(facts: HostFacts, tmp_path: Path) -> None:
    """MPICH's hydra fails where more than 64 KiB are unread; apply_plan.py makes the most of it."""
    files = [EmittedFile(name="apply_plan.py", text=applying_script().read_text())]
    nodes = tuple(Node(name=name) for name in ("alpha", "beta"))
    job = RECIPE.observed(framework="trainer", global_batch_size=8, parses_arguments=True)
    engine = engines.FromHere(Mpirun(dialect="mpich"))
    files += engines.render_for(engine, TWO, job, facts, nodes, "eth0")
    launch = engines.Launch(
        plan=TWO,
        nodes=nodes,
        files=tuple(files),
        variables={},
        environment={},
        folder=tmp_path,
    )
    asked = {"folder": "x", "files": engines.all_files(launch), "programs": []}
    assert len(sent_lines(script_text("place.py"), asked)) < 64_000


def engines_question(text: str) -> tuple[str, dict[str, Any]]:
    import base64
    import bz2
    import json
    import zlib

    script, question = (
        (bz2 if packed.startswith(b"BZh") else zlib).decompress(packed).decode()
        for packed in map(base64.b85decode, text.splitlines())
    )
    return script, json.loads(question)


def test_what_a_second_node_costs_is_said_once_and_before_it_is_tried(facts: HostFacts) -> None:
    rate = Rate(interface="eth0", bytes_per_second=50e6, delay_seconds=0.001)
    job = replace(JOB, gradient_bytes=44_800_000)
    notes: list[str] = []
    there = replace(two(facts), rate=rate)
    with ProcessRunner(job, facts, hosts=there, offline=True, on_note=notes.append) as runner:
        runner.note_cost_of_nodes(FIRST_ALONE)
        assert notes == []
        runner.note_cost_of_nodes(TWO)
        runner.note_cost_of_nodes(TWO)
    said = "2 nodes send 44.8 MB of gradients in each step, which takes 0.9 s at the measured rate"
    assert notes == [said]


def nodes(*names: str) -> list[Node]:
    return [Node(name=name) for name in names]


def refused(reach: FakeReach, *names: str) -> CputuneError:
    with pytest.raises(CputuneError) as caught:
        open_hosts(nodes(*names), reach, RECIPE, interpreter=this_interpreter())
    assert caught.value.hint
    return caught.value


@pytest.fixture(scope="module")
def probed() -> Probed:
    (told,) = probe_each(nodes("alpha"), FakeReach())
    assert isinstance(told, Probed)
    return told


class FakeUnknown(Host):
    """A machine of which no file can be read."""

    def read_text(self, path: str) -> str:
        raise FileNotFoundError(path)


def elsewhere(probed: Probed, **changes: Any) -> Probed:
    """What another machine called beta would report."""
    return replace(probed, node=Node(name="beta"), host=FakeUnknown(), **changes)


class TestOpening:
    def test_one_machine_under_two_names_is_no_second_node(self, golden: Golden) -> None:
        error = refused(FakeReach(), "127.0.0.1", "localhost")
        golden(str(error))

    def test_a_probe_that_fails_is_not_called_an_unreachable_host(self) -> None:
        reach = FakeReach(instead={"alpha": (sys.executable, "-c", "import no_such_module")})
        error = refused(reach, "alpha")
        begins = "alpha was reached, but could not be examined: it ended with 1: ModuleNotFound"
        assert str(error).startswith(begins)

    def test_a_host_twice(self, golden: Golden) -> None:
        error = refused(FakeReach(), "alpha", "alpha")
        assert isinstance(error, UsageError)
        golden(str(error))

    def test_the_python_that_trains_is_not_there(
        self, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        monkeypatch.setattr(sys, "executable", "/opt/training/bin/python")
        error = refused(FakeReach(), "alpha")
        golden(str(error))
        assert "same path" in (error.hint or "")

    def test_what_the_script_imports_and_reads_is_compared(self, workdir: Path) -> None:
        script, module, data = (workdir / name for name in ("train.py", "model.py", "rows.csv"))
        script.write_text("import torch\nfrom model import Net\n")
        module.write_text("class Net: pass\n")
        data.write_text("1\n")
        job = Workload.script([str(script), "--train_file", str(data)])
        assert set(hosts.needed_paths(job, this_interpreter())) >= set(
            map(str, (script, module, data))
        )
        for path, lies in ((script, None), (module, "17 abc"), (data, "2 other")):
            reach = FakeReach()
            real = probe_each(
                nodes("alpha"), reach, content=tuple(hosts.needed_paths(job, this_interpreter()))
            )[0]
            assert isinstance(real, Probed)
            other = elsewhere(real, content={**real.content, str(path): lies})
            with pytest.raises(CannotError) as caught:
                hosts.refuse_differences(
                    [real, other],
                    tuple(hosts.needed_paths(job, this_interpreter())),
                    sys.executable,
                )
            assert str(path) in str(caught.value)
            assert "beta" in str(caught.value)

    def test_another_torch_is_there(self, probed: Probed, golden: Golden) -> None:
        older = tuple(
            replace(package, version="2.8.0") if package.name == "torch" else package
            for package in probed.facts.packages
        )
        other = elsewhere(probed, facts=replace(probed.facts, packages=older))
        with golden.raises(CannotError):
            hosts.refuse_differences([probed, other], (), sys.executable)

    def test_one_host_needs_no_interface(self, facts: HostFacts) -> None:
        assert (
            interface_between([Probed(node=Node(name="alpha"), facts=facts)], FakeReach()) is None
        )

    def test_hosts_without_a_network_between_them(self, facts: HostFacts, golden: Golden) -> None:
        lo = Network(
            interfaces=("lo",), links=(Link(name="lo", up=True, addresses=("127.0.0.1/8",)),)
        )
        facts = replace(facts, network=lo)
        alone = [Probed(node=Node(name=name), facts=facts) for name in NAMES]
        with golden.raises(CannotError):
            interface_between(alone, FakeReach())

    def test_a_host_that_is_not_reached(self, golden: Golden) -> None:
        reach = FakeReach(instead={"beta": ("sh", "-c", "echo no such host >&2; exit 255")})
        with golden.raises(Unreachable):
            open_hosts(nodes("alpha", "beta"), reach, RECIPE, interpreter=this_interpreter())

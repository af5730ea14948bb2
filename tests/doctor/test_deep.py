"""What ``doctor --deep`` says of children that end as they are told; one test starts real ones."""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from importlib import util

import pytest
from clean_machine import changed
from golden_texts import Golden
from rows import every_row
from stacks import IPEX_ERA, TODAY, machine

from cputune import Severity, probe
from cputune.doctor.deep import deep_findings
from cputune.doctor.measured_work import expected_gflops
from cputune.host import Command, Completed, Host, LiveHost

VERBOSE = """\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,src:bf16::x
"""
OLD_IPEX = {**TODAY, "intel_extension_for_pytorch": "2.8.0"}


class FakeHost(Host):
    """Children that end as they are told to; a child nobody wrote down is an error.

    ``scripted`` are their ends by the module that is imported, or ``product``.
    """

    live = True

    def __init__(self, **scripted):
        ends = {"transformers": imports(), "product": product(), "work": worked()}
        self.scripted = {**ends, **scripted}
        self.commands = []

    def run(self, command: Command) -> Completed:
        self.commands.append(command)
        name = os.path.basename(command.argv[1]).removesuffix(".py")
        capped = (command.environment or {}).get("ONEDNN_MAX_CPU_ISA")
        outcome = self.scripted[command.argv[-1] if name == "imports" else name]
        return outcome(capped) if callable(outcome) else outcome


def ended(code=0, out="", err="", seconds=1.0):
    return Completed(returncode=code, stdout=out, stderr=err, seconds=seconds)


def worked(**said):
    """Four cores with AVX-512 at 2.5 GHz can do 640 GFLOP/s in fp32."""
    healthy = {"threads": 4, "ran": 4, "busy": 4.0, "fp32_gflops": 500.0, "mhz": 2500.0}
    more = {"bf16_gflops": 900.0, "copy_gb_per_second": 40.0, "all_reduce_gb_per_second": 2.0}
    return ended(out=told({**healthy, **more, **said}))


def told(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


TORCH = ({"cpus": [0, 1, 2, 3]}, {"trying": "torch"})


def imports(after=(0, 1, 2, 3), libraries=("/t/libgomp.so.1",), then=None):
    torch = {"module": "torch", "cpus": after, "openmp": libraries[:1]}
    last = {"module": "transformers", "cpus": after, "openmp": libraries}
    noise = "a line of somebody else\n{half a line\n"
    return ended(out=told(*TORCH, torch) + noise + told({"trying": "x"}, then or last))


def product(bf16=0.002, fp32=0.004):
    return ended(out=VERBOSE + told({"seconds": {"fp32": fp32, "bf16": bf16}}))


def look(packages=TODAY, *, facts=None, **scripted):
    return deep_findings(facts or machine(packages), FakeHost(**scripted))


def only(code, found):
    (finding,) = [finding for finding in found if finding.code == code]
    return finding


def test_on_a_healthy_machine_figures_alone_are_reported(golden: Golden):
    host = FakeHost()
    host.executable = "/their/python"
    finding, proof = deep_findings(machine(TODAY), host)
    assert (proof.code, proof.severity) == ("deep-work", Severity.ADVICE)
    golden(proof.evidence)
    assert (finding.code, finding.severity) == ("deep-bf16-ratio", Severity.ADVICE)
    golden(finding.evidence)
    assert {command.argv[0] for command in host.commands} == {"/their/python"}
    assert all(command.timeout_seconds for command in host.commands)
    (asked,) = [one for one in host.commands if one.argv[1].endswith("product.py")]
    assert asked.environment["ONEDNN_VERBOSE"] == "1"


@every_row(
    ("codename", "model", "isa", "gflops"),
    [
        ("Zen 5", "AMD EPYC 9575F", ("avx2", "avx512f"), 640),
        ("Zen 4", "AMD EPYC 9654", ("avx2", "avx512f"), 320),
        ("Zen 3", "AMD EPYC 7763", ("avx2",), 320),
        ("Sierra Forest", "Intel(R) Xeon(R) 6780E", ("avx2",), 160),
        ("Cascade Lake", "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", ("avx2", "avx512f"), 640),
        ("Cascade Lake", "Intel(R) Xeon(R) Silver 4214 CPU @ 2.20GHz", ("avx2", "avx512f"), 320),
        ("Cascade Lake", "Intel(R) Xeon(R) Gold 5218 CPU @ 2.30GHz", ("avx2", "avx512f"), 320),
        ("Cascade Lake", "Intel(R) Xeon(R) Gold 5222 CPU @ 3.80GHz", ("avx2", "avx512f"), 640),
        (None, "a processor", ("sse4_2",), 80),
    ],
)
def test_what_four_cores_should_give(codename, model, isa, gflops):
    facts = machine(TODAY)
    cpu = replace(facts.cpu, codename=codename, model_name=model, isa=isa)
    assert expected_gflops(replace(facts, cpu=cpu), 2500.0) == gflops


IPEX = told(*TORCH, {"trying": "intel_extension_for_pytorch"})


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (
            ended(127, IPEX, "ERROR! needs PyTorch 2.4"),
            " ended with 127: ERROR! needs",
        ),
        (ended(-signal.SIGABRT, IPEX, "terminate called"), " was ended by SIGABRT: terminate"),
        (
            imports(
                then={"module": "intel_extension_for_pytorch", "error": "OSError", "said": "no so"}
            ),
            ": OSError: no so",
        ),
    ],
)
def test_a_package_that_kills_the_interpreter_is_a_finding(done, said, golden: Golden):
    finding = only("deep-import", look(OLD_IPEX, intel_extension_for_pytorch=done))
    golden(finding.evidence)
    golden(finding.command)


def test_a_package_that_can_be_imported_is_not_missing():
    found = look(IPEX_ERA, intel_extension_for_pytorch=imports())
    assert [finding.code for finding in found] == ["deep-bf16-ratio", "deep-work"]


def test_bindings_are_imported_by_the_name_of_their_version(golden: Golden):
    said = "libccl.so.1: cannot open shared object file"
    failed = imports(then={"module": "torch_ccl", "error": "ImportError", "said": said})
    packages = {"torch": "1.11.0", "oneccl_bind_pt": "1.11.0"}
    finding = only("deep-import", look(packages, torch_ccl=failed))
    assert finding.evidence == f"import torch_ccl: ImportError: {said}"
    golden(finding.remedy)


def test_cpus_that_are_lost_at_import(golden: Golden):
    facts = machine(TODAY, environment={"KMP_AFFINITY": "compact"})
    finding = only("deep-affinity", look(facts=facts, transformers=imports(after=(0,))))
    golden(finding.evidence)
    golden(finding.command)


def test_two_openmp_runtimes_in_one_process(golden: Golden):
    libraries = ("/t/libgomp.so.1", "/s/libiomp5.so")
    finding = only("deep-openmp-two", look(transformers=imports(libraries=libraries)))
    golden(finding.evidence)
    golden(finding.remedy)


def test_torch_that_cannot_be_imported(golden: Golden):
    died = ended(1, told(*TORCH), "ImportError: libtorch_cpu.so")
    finding = only("deep-import", look(transformers=died))
    golden(finding.evidence)


def test_bf16_that_is_slower_than_the_cpu_promises():
    finding = only("deep-bf16-ratio", look(product=product(bf16=0.008)))
    assert finding.severity is Severity.WARNING
    without = look(facts=machine(TODAY, isa=("avx2",)), product=product(bf16=0.008))
    assert only("deep-bf16-ratio", without).severity is Severity.ADVICE


def test_instructions_that_are_shown_and_not_executed(golden: Golden):
    def dies_above(capped):
        return product() if capped == "AVX512_CORE" else ended(-signal.SIGILL)

    finding = only("deep-illegal-instruction", look(product=dies_above))
    golden(finding.evidence)
    golden(finding.command)
    helpless = only("deep-illegal-instruction", look(product=ended(-signal.SIGILL)))
    assert helpless.command is None

    def dies_or_hangs(capped):
        return ended(None, seconds=120.0) if capped else ended(-signal.SIGILL)

    hung = only("deep-illegal-instruction", look(product=dies_or_hangs))
    assert hung.command is None


@pytest.mark.parametrize("done", [ended(None, seconds=120.0), ended(0, out="nothing of ours")])
def test_a_look_that_says_nothing_proves_nothing(done):
    found = look(transformers=done, product=done, work=done)
    assert {finding.code for finding in found} == {"deep-skipped"}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"cpu": {"model_name": "QEMU TCG CPU version 2.5+"}}, "likely cause: cpu-emulated, "),
        ({"restraints": {"nice": 19}}, "likely cause: priority-low, nice 19"),
        ({"load": {"average_1min": 40.0}}, "likely cause: machine-busy, load average 40"),
        ({}, "the threads had too little CPU time"),
    ],
)
def test_work_below_what_the_cpu_should_give_has_a_cause(changes, cause, golden: Golden):
    facts = changed(machine(TODAY), **changes)
    finding = only("deep-work", look(facts=facts, work=worked(fp32_gflops=100.0, busy=1.0, ran=1)))
    assert finding.severity is Severity.WARNING
    golden(finding.evidence)
    assert cause in finding.evidence


def test_of_an_unknown_processor_nothing_is_expected(golden: Golden):
    facts = changed(machine(TODAY), cpu={"architecture": "aarch64"})
    finding = only("deep-work", look(facts=facts, work=worked(fp32_gflops=1.0)))
    assert finding.severity is Severity.ADVICE
    golden(finding.evidence)


def test_without_torch_every_look_is_skipped_with_the_reason():
    (finding,) = look({"transformers": "5.23.0"})
    assert (finding.code, finding.evidence) == ("deep-skipped", "torch is not installed")


def test_a_child_that_cannot_be_started_is_said():
    class NoChildren(FakeHost):
        def run(self, command):
            raise OSError("no more processes")

    found = deep_findings(machine(TODAY), NoChildren())
    assert {finding.code for finding in found} == {"deep-skipped"}


@pytest.mark.matrix
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(util.find_spec("torch") is None, reason="torch is not installed")
def test_real_children_measure_this_machine():
    class Bound(LiveHost):
        """This machine, with its OpenMP runtime told to bind."""

        def run(self, command):
            environment = {**(command.environment or os.environ), "OMP_PROC_BIND": "true"}
            return super().run(replace(command, environment=environment))

    host = Bound()
    facts = replace(probe(host), environment={"OMP_PROC_BIND": "true"})
    found = deep_findings(facts, host)
    assert " times as fast as fp32 on one core" in only("deep-bf16-ratio", found).evidence
    assert re.search(r"fp32 \d+ GFLOP/s, bf16 \d+ GFLOP/s", only("deep-work", found).evidence)
    if len(os.sched_getaffinity(0)) > 1 and sys.platform == "linux":
        assert only("deep-affinity", found).command == "unset OMP_PROC_BIND"

from dataclasses import replace

import pytest
from stacks import IPEX_ERA, TODAY, machine

from cputune.doctor import named_stack
from cputune.doctor.checks import versions
from cputune.doctor.finding import Severity
from cputune.doctor.named_stack import judge_stack
from cputune.errors import UsageError
from cputune.facts import Library


def findings(packages, **more):
    facts = machine(packages, **more)
    return {finding.code: finding for check in versions.CHECKS for finding in check(facts)}


def test_a_stack_that_fits_has_no_finding():
    assert findings(TODAY) == {}


@pytest.mark.parametrize("packages", [{}, {"numpy": "2.4.6"}])
def test_an_environment_without_torch_is_named(packages):
    found = findings(packages)
    assert set(found) == {"torch-missing"}
    assert found["torch-missing"].evidence == "Python 3.11.9 has no torch"
    assert "--python PATH" in found["torch-missing"].remedy


def test_a_recording_without_packages_says_nothing_of_torch():
    facts = replace(machine({}), recorded=True)
    assert not any(check(facts) for check in versions.CHECKS)


def test_the_ipex_era_stack_has_advice_alone():
    assert set(findings(IPEX_ERA)) == {"ipex-unasked"}


@pytest.mark.parametrize(
    ("packages", "code", "severity", "evidence", "command"),
    [
        (
            {**IPEX_ERA, "torch": "2.6.0"},
            "ipex-torch-mismatch",
            Severity.ERROR,
            "2.8.0 was built for torch 2.8, not 2.6.0; importing it prints an ERROR and raises "
            "AttributeError",
            "pip install intel_extension_for_pytorch==2.6.0",
        ),
        (
            {**TODAY, "intel_extension_for_pytorch": "2.8.0"},
            "ipex-ended",
            Severity.ERROR,
            "intel_extension_for_pytorch 2.8.0 beside torch 2.13.0",
            "pip uninstall -y intel_extension_for_pytorch",
        ),
        (
            {"torch": "1.13.1", "intel_extension_for_pytorch": "1.12.100"},
            "ipex-torch-mismatch",
            Severity.ERROR,
            "exits with 127",
            "pip install intel_extension_for_pytorch==1.13.100 "
            "-f https://developer.intel.com/ipex-whl-stable-cpu",
        ),
        (
            {"torch": "1.12.1", "oneccl_bind_pt": "1.12.0"},
            "oneccl-torch-mismatch",
            Severity.ERROR,
            "built for torch 1.12.0, not 1.12.1; oneccl_bind_pt 1.12.100 fits",
            "pip install oneccl_bind_pt==1.12.100 "
            "-f https://developer.intel.com/ipex-whl-stable-cpu",
        ),
        (
            {**TODAY, "torch": "2.5.1"},
            "transformers-torch",
            Severity.ERROR,
            "transformers 5.23.0 needs torch >=2.6, found 2.5.1",
            "pip install torch==2.13.0",
        ),
        (
            {"torch": "2.8.0", "transformers": "4.52.4", "accelerate": "1.7.0"},
            "transformers-torch",
            Severity.WARNING,
            "needs torch <2.7,>=2.1, found 2.8.0",
            "pip install transformers==4.55.4",
        ),
        (
            {**TODAY, "accelerate": "1.0.1"},
            "transformers-accelerate",
            Severity.ERROR,
            "needs accelerate >=1.1.0, found 1.0.1",
            "pip install accelerate==1.15.0",
        ),
        (
            {"torch": "2.13.0", "transformers": "5.23.0"},
            "accelerate-missing",
            Severity.ERROR,
            "transformers 5.23.0 needs accelerate >=1.1.0",
            "pip install 'accelerate>=1.1.0'",
        ),
        (
            {**IPEX_ERA, "transformers": "4.56.2"},
            "trainer-arguments",
            Severity.WARNING,
            "transformers 4.56.2 beside accelerate 1.7.0: HfArgumentParser(TrainingArguments)",
            "pip install transformers==4.55.4",
        ),
        (
            {**IPEX_ERA, "transformers": "4.31.0"},
            "ipex-unasked",
            Severity.ADVICE,
            "ACCELERATE_USE_IPEX is not set: in every script",
            "export ACCELERATE_USE_IPEX=false",
        ),
        (
            {"torch": "1.13.1", "accelerate": "1.3.0"},
            "accelerate-torch",
            Severity.ERROR,
            "needs torch >=2.0.0, found 1.13.1",
            None,
        ),
        (
            {"torch": "2.2.2", "numpy": "2.0.1"},
            "numpy-too-new",
            Severity.ERROR,
            "torch 2.2.2 needs numpy <2, found 2.0.1",
            "pip install 'numpy<2'",
        ),
        (
            {"torch": "2.4.1", "accelerate": "0.33.0", "numpy": "2.0.1"},
            "numpy-too-new",
            Severity.WARNING,
            "accelerate 0.33.0 needs numpy <2.0.0",
            "pip install 'numpy<2'",
        ),
        (
            {"transformers": "5.23.0", "accelerate": "1.15.0"},
            "torch-missing",
            Severity.ERROR,
            "transformers, accelerate without torch",
            "pip install torch --index-url https://download.pytorch.org/whl/cpu",
        ),
        (
            {**IPEX_ERA, "accelerate": "1.8.1"},
            "ipex-ignored",
            Severity.WARNING,
            "accelerate 1.8.1 with torch 2.8.0",
            "pip uninstall -y intel_extension_for_pytorch",
        ),
        (
            IPEX_ERA,
            "ipex-unasked",
            Severity.ADVICE,
            "ACCELERATE_USE_IPEX is not set: in scripts with an Accelerator",
            "export ACCELERATE_USE_IPEX=false",
        ),
        (
            {"torch": "2.8.0", "oneccl_bind_pt": "2.8.0", "accelerate": "1.13.0"},
            "oneccl-unused",
            Severity.WARNING,
            "accelerate 1.13.0 has no ccl backend",
            "pip uninstall -y oneccl_bind_pt",
        ),
        (
            {"torch": "2.8.0", "oneccl_bind_pt": "2.8.0", "transformers": "5.1.0"},
            "oneccl-unused",
            Severity.WARNING,
            "transformers 5.1.0 does not take --ddp_backend ccl",
            "pip uninstall -y oneccl_bind_pt",
        ),
        (
            {**TODAY, "torch": "2.13.0+cu130"},
            "torch-cuda-build",
            Severity.ADVICE,
            "torch 2.13.0+cu130, no GPU",
            "pip uninstall -y torch && pip install torch==2.13.0 "
            "--index-url https://download.pytorch.org/whl/cpu",
        ),
        (
            {**TODAY, "nvidia-cublas-cu12": "12.8"},
            "torch-cuda-build",
            Severity.ADVICE,
            "1 packages for CUDA",
            "pip uninstall -y torch nvidia-cublas-cu12 && pip install torch==2.13.0 "
            "--index-url https://download.pytorch.org/whl/cpu",
        ),
        (
            {**TODAY, "torch": None},
            "package-version-unknown",
            Severity.WARNING,
            "torch in /venv/site-packages has no version",
            "pip install --force-reinstall --no-deps torch",
        ),
        (
            {**TODAY, "torch": "rubbish"},
            "package-version-unknown",
            Severity.WARNING,
            "the version 'rubbish'",
            "pip install --force-reinstall --no-deps torch",
        ),
    ],
)
def test_a_misfit_is_found_with_its_cure(packages, code, severity, evidence, command):
    python = "3.10.4" if packages.get("torch", "").__str__().startswith("1.") else "3.11.9"
    finding = findings(packages, python=python)[code]
    assert finding.severity is severity
    assert evidence in finding.evidence
    if command is not None:
        assert finding.command == command


def test_both_ways_out_are_said_the_smaller_one_first():
    remedy = findings({**TODAY, "intel_extension_for_pytorch": "2.8.0"})["ipex-ended"].remedy
    assert remedy == (
        "Go to today's stack: pip uninstall -y intel_extension_for_pytorch; or stay in the IPEX "
        "era: pip install torch==2.8.0 transformers==4.55.4 accelerate==1.7.0."
    )


def test_a_python_that_has_no_wheel():
    finding = findings({"torch": "2.8.0"}, python="3.14.0")["python-without-wheel"]
    assert "torch 2.8.0 has no wheel for Python 3.14" in finding.evidence
    assert finding.remedy.endswith("3.10, 3.11, 3.12, 3.13.")
    assert finding.command == "python3.13 -m venv venv"
    none = findings({"torch": "1.10.2", "transformers": "5.23.0"})["python-without-wheel"]
    assert (none.remedy, none.command) == ("Use a Python that has one.", None)


def test_a_cuda_build_is_right_on_a_machine_with_a_gpu_or_where_nobody_knows():
    packages = {**TODAY, "torch": "2.13.0+cu130"}
    assert "torch-cuda-build" not in findings(packages, accelerators=("nvidia",))
    assert "torch-cuda-build" not in findings(packages, accelerators=None)


def test_a_cuda_build_without_a_label_is_known_by_what_it_was_built_for():
    facts = machine({"torch": "2.13.0"})
    built = replace(facts, packages=(replace(facts.packages[0], build="cuda 13.0"),))
    codes = {finding.code for check in versions.CHECKS for finding in check(built)}
    assert codes == {"torch-cuda-build"}


def test_metadata_of_two_versions_in_one_environment():
    facts = machine({"torch": "2.13.0"})
    twice = replace(facts, packages=(replace(facts.packages[0], others=("2.8.0",)),))
    (finding,) = [finding for check in versions.CHECKS for finding in check(twice)]
    assert finding.code == "package-twice"
    assert finding.evidence == "torch 2.13.0 and 2.8.0 in /venv/site-packages"
    assert finding.command == (
        "pip uninstall -y torch && pip uninstall -y torch && pip install torch==2.13.0"
    )


def test_variables_that_the_installed_versions_do_not_read():
    set_in_vain = {"ACCELERATE_USE_IPEX": "true", "CCL_WORKER_COUNT": "1"}
    facts = machine(TODAY, environment=set_in_vain)
    found = [finding for check in versions.CHECKS for finding in check(facts)]
    assert [finding.command for finding in found] == [
        "unset ACCELERATE_USE_IPEX",
        "unset CCL_WORKER_COUNT",
    ]
    assert "stack-variable-ignored" not in findings(IPEX_ERA, environment=set_in_vain)
    assert "stack-variable-ignored" not in findings(TODAY, environment={"CCL_WORKER_COUNT": "0"})


def test_an_accelerate_that_has_the_type_lets_scripts_parse_their_arguments():
    packages = {"torch": "2.8.0", "transformers": "4.56.2", "accelerate": "1.10.1"}
    assert "trainer-arguments" not in findings(packages)


ONECCL = {"torch": "2.8.0", "oneccl_bind_pt": "2.8.0"}
PAIR = {"torch": "2.6.0", "intel_extension_for_pytorch": "2.6.0"}


@pytest.mark.parametrize(
    ("packages", "codes"),
    [
        # Trainer calls it, whatever accelerate does
        ({**PAIR, "transformers": "4.52.4", "accelerate": "1.13.0"}, set()),
        ({**TODAY, "intel_extension_for_pytorch": "2.8.0"}, {"ipex-ended"}),
        ({"torch": "2.9.1", "intel_extension_for_pytorch": "2.9.10+xpu"}, set()),
        ({"torch": "1.13.1", "transformers": "4.28.1"}, set()),  # which needs no accelerate
        ({"torch": "1.9.0", "transformers": "3.5.0"}, set()),
        ({"torch": "2.8.0", "accelerate": "1.13.0"}, set()),
        ({**TODAY, "torch": "2.13.0+cpu"}, set()),
        ({**TODAY, "triton": "3.5"}, {"torch-cuda-build"}),
        (
            {**TODAY, "torch": "rubbish", "triton": "3.5"},
            {"package-version-unknown"},
        ),
        ({**TODAY, "requests": None}, set()),
        ({"requests": None, **TODAY, "accelerate": None}, {"package-version-unknown"}),
    ],
)
def test_these_faults_and_no_others(packages, codes):
    python = "3.9.18" if packages["torch"].startswith("1.") else "3.11.9"
    assert set(findings(packages, python=python)) == codes


@pytest.mark.parametrize(
    ("packages", "code", "evidence"),
    [
        (
            {"torch": "2.8.0", "intel_extension_for_pytorch": "2.8.0", "accelerate": "1.8.1"},
            "ipex-ignored",
            "accelerate 1.8.1 with torch 2.8.0 ignores IPEX",
        ),
        (
            {**IPEX_ERA, "accelerate": "1.8.1"},
            "ipex-ignored",
            "accelerate 1.8.1 with torch 2.8.0 ignores IPEX, and transformers 4.55.4 leaves IPEX "
            "to it",
        ),
        (
            {"torch": "2.8.0", "intel_extension_for_pytorch": "2.8.0", "accelerate": "1.7.0"},
            "ipex-unasked",
            "accelerate 1.7.0, intel_extension_for_pytorch 2.8.0, ACCELERATE_USE_IPEX is not set: "
            "in every script",
        ),
        (
            {**ONECCL, "transformers": "5.1.0", "accelerate": "1.12.0"},
            "oneccl-unused",
            "transformers 5.1.0 does not take --ddp_backend ccl; scripts with an Accelerator of "
            "their own can",
        ),
        (
            {**ONECCL, "accelerate": "1.13.0"},
            "oneccl-unused",
            "accelerate 1.13.0 has no ccl backend",
        ),
        (
            {**ONECCL, "transformers": "5.1.0", "accelerate": "1.13.0"},
            "oneccl-unused",
            "accelerate 1.13.0 has no ccl backend; transformers 5.1.0 does not take "
            "--ddp_backend ccl",
        ),
        (
            {"torch": "2.9.1", "oneccl_bind_pt": "2.8.0"},
            "oneccl-torch-mismatch",
            "oneccl_bind_pt 2.8.0 was built for torch 2.8.0, not 2.9.1; no bindings exist for it",
        ),
        (
            {**TODAY, "intel_extension_for_pytorch": "2.8.0"},
            "ipex-ended",
            "intel_extension_for_pytorch 2.8.0 beside torch 2.13.0; the last IPEX for CPUs is "
            "2.8.0, for torch 2.8; importing it prints an ERROR and raises AttributeError",
        ),
        (
            {**TODAY, "intel_extension_for_pytorch": "2.99.0"},
            "ipex-ended",
            "intel_extension_for_pytorch 2.99.0 beside torch 2.13.0; the last IPEX for CPUs is "
            "2.8.0, for torch 2.8",
        ),
        (
            {"numpy": "2.0", "requests": "2", "transformers": "5.23.0"},
            "torch-missing",
            "transformers without torch",
        ),
        (
            {**TODAY, "torch": "2.13.0+cu130", "nvidia-nccl": "1", "triton": "3"},
            "torch-cuda-build",
            "torch 2.13.0+cu130 and 2 packages for CUDA, no GPU",
        ),
    ],
)
def test_a_misfit_is_told_with_what_decides(packages, code, evidence):
    assert findings(packages)[code].evidence == evidence


def test_what_is_not_used_is_removed_and_nothing_else():
    stacks = {"ipex-ignored": {**IPEX_ERA, "accelerate": "1.8.1"}}
    stacks["oneccl-unused"] = {**TODAY, "oneccl_bind_pt": "2.8.0"}
    for code, packages in stacks.items():
        finding = findings(packages)[code]
        assert finding.command.startswith("pip uninstall -y ")
        assert "install torch" not in finding.command
        assert "IPEX era: pip install" in finding.remedy.replace("pip uninstall", "")
    newest = findings(stacks["ipex-ignored"], python="3.14.0")["ipex-ignored"]
    assert "IPEX era" not in newest.remedy  # which has no wheels for this Python


def test_a_package_that_lies_nowhere_is_told_so():
    facts = machine({"torch": None}, location=None)
    (finding,) = [finding for check in versions.CHECKS for finding in check(facts)]
    assert finding.evidence == "torch in an unknown place has no version"


def test_of_several_packages_each_is_looked_at_and_removed_as_often_as_it_is_there():
    facts = machine({"requests": "2.0", "torch": "2.13.0", "accelerate": None})
    requests, torch, accelerate = facts.packages
    again = (replace(requests, others=("1.0",)), torch, replace(accelerate, others=("1", "2")))
    (finding,) = versions.package_twice(replace(facts, packages=again))
    assert finding.command == (
        "pip uninstall -y accelerate && pip uninstall -y accelerate && "
        "pip uninstall -y accelerate && pip install accelerate"
    )


@pytest.mark.parametrize(
    ("packages", "evidence"),
    [
        (
            {k: v for k, v in IPEX_ERA.items() if k != "intel_extension_for_pytorch"},
            "ACCELERATE_USE_IPEX=true; intel_extension_for_pytorch is not installed",
        ),
        (TODAY, "ACCELERATE_USE_IPEX=true; accelerate 1.15.0 knows no IPEX"),
        ({"torch": "2.13.0"}, None),
    ],
)
def test_ipex_is_asked_for_in_vain(packages, evidence):
    facts = machine(packages, environment={"ACCELERATE_USE_IPEX": "true"})
    found = [finding.evidence for finding in versions.stack_variable_ignored(facts)]
    assert found == ([] if evidence is None else [evidence])


BROUGHT = "/venv/site-packages/oneccl_bindings_for_pytorch/lib/libccl.so.1.0"


def setvars(libraries, **environment):
    """The finding about setvars.sh on a machine with these libccl; None where it is silent."""
    found = tuple(Library(name="libccl", path=path) for path in libraries)
    facts = replace(machine(ONECCL, environment=environment), libraries=found)
    findings = (finding for check in versions.CHECKS for finding in check(facts))
    return next((finding for finding in findings if finding.code == "oneccl-setvars"), None)


def test_sourced_bindings_need_no_setvars():
    assert setvars([BROUGHT], LD_LIBRARY_PATH=BROUGHT.rpartition("/")[0]) is None
    assert setvars(["/opt/ccl/lib/libccl.so.1"], LD_LIBRARY_PATH="/x:/opt/ccl/lib") is None


def test_of_a_recording_and_of_bindings_without_a_version_nothing_is_said():
    for facts in (replace(machine(ONECCL), recorded=True), machine({"oneccl_bind_pt": "?"})):
        assert not versions.oneccl_setvars(facts)


def test_bindings_that_bring_oneccl_are_sourced():
    finding = setvars([BROUGHT])
    assert finding.evidence.startswith("CCL_ROOT is not set")
    script = "/venv/site-packages/oneccl_bindings_for_pytorch/env/setvars.sh"
    assert finding.command == f". '{script}'"
    assert finding.remedy.startswith("Source setvars.sh")


def test_a_ccl_root_that_is_nowhere_silences_nobody():
    """It did; and a setvars.sh was named that no bindings had brought."""
    finding = setvars([], CCL_ROOT="/nowhere")
    assert "CCL_ROOT=/nowhere" in finding.evidence
    assert finding.command is None
    assert finding.remedy.startswith("These bindings bring no oneCCL")


def test_ipex_switched_off_is_not_used_unasked():
    assert findings(IPEX_ERA, environment={"ACCELERATE_USE_IPEX": "false"}) == {}


def test_every_check_tells_its_story_once():
    checks = (*versions.CHECKS, *named_stack.CHECKS)
    assert len({check.code for check in checks}) == len(checks)
    assert all(check.story and check.source and check.remedy for check in checks)


class TestJudgeStack:
    def judge(self, spec, packages=TODAY):
        found = judge_stack(spec, machine(packages))
        return {finding.code: finding for finding in found}

    def test_a_stack_that_is_not_installed(self):
        found = self.judge("torch=2.6.0,transformers=4.36")
        fits = found["stack-fits"].evidence
        assert "intel_extension_for_pytorch: 2.6.0;" in fits
        assert "oneccl_bind_pt: 2.6.0;" in fits
        assert "accelerate: seen training 0.26.1" in fits
        assert ", not tried 0.21.0 to 0.25.0" in fits
        era = found["stack-ipex-era"].command
        assert era.endswith(" intel_extension_for_pytorch==2.6.0")
        assert "accelerate==1.7.0" not in era  # which dropped what transformers 4.36 passes
        assert found["stack-today"].command == (
            "pip install torch==2.13.0 transformers==5.23.0 accelerate==1.15.0"
        )

    def test_versions_that_fit_are_told_in_stretches(self):
        fits = self.judge("torch=2.8.0,accelerate=1.7.0", {})["stack-fits"].evidence.split("; ")
        assert fits[0] == "torch 2.8.0, accelerate 1.7.0"
        assert "oneccl_bind_pt: 2.8.0" in fits
        (runs,) = (said for said in fits if said.startswith("transformers: "))
        assert "not tried 4.10.3 to 4.20.1, 4.22.0 to 4.35.2" in runs
        assert "numpy: 1 or 2" in fits
        assert fits[-1] == "Python: 3.9 to 3.13"

    def test_what_nothing_fits_with_is_told(self):
        fits = self.judge("torch=2.2.2,python=3.11", {})["stack-fits"].evidence
        assert "numpy: below 2" in fits
        assert (
            "accelerate: seen training none, not tried none"
            in self.judge("transformers=5.23.0,torch=1.9.0", {})["stack-fits"].evidence
        )

    def test_what_is_not_named_is_not_missing(self):
        found = judge_stack("transformers=5.23.0", machine({}))
        assert {finding.severity for finding in found} == {Severity.ADVICE}

    def test_a_stack_that_does_not_fit_is_said_first(self):
        found = judge_stack("torch==2.13.0, ipex==2.8.0", machine({}))
        assert found[0].code == "ipex-ended"

    def test_what_the_stack_refuses_ignores_and_accepts(self):
        found = judge_stack("installed", machine(TODAY))
        said = {f.title: f.evidence for f in found if f.code == "stack-words"}
        assert "--use_cpu" in said["What this stack accepts"]
        assert "--no_cuda (instead: --use_cpu)" in said["What this stack refuses"]
        assert "ipex_config:" in said["What this stack refuses"]
        assert "--ddp_backend ccl (accelerate 1.15.0 has no ccl" in said["What this stack refuses"]
        assert "--fp16 (on a CPU it trains in fp32" in said["What this stack ignores"]
        assert "mpirun_config.mpirun_ccl:" in said["What this stack ignores"]

    @pytest.mark.parametrize(("accelerate", "state"), [("1.7.0", "accepts"), ("1.8.1", "ignores")])
    def test_use_ipex_is_accepted_only_where_somebody_calls_it(self, accelerate, state):
        found = judge_stack("installed", machine({**IPEX_ERA, "accelerate": accelerate}))
        (words,) = [f.evidence for f in found if f.title == f"What this stack {state}"]
        assert "--use_ipex" in words

    def test_todays_stack_has_to_change_nothing(self):
        assert self.judge("installed")["stack-today"].command is None

    def test_another_python_may_be_asked_about(self):
        found = self.judge("python=3.14,torch=2.8.0,ipex=2.8.0")
        assert "python-without-wheel" in found
        assert "no wheels of the IPEX era" in found["stack-ipex-era"].evidence

    @pytest.mark.parametrize(
        "spec",
        [
            "",
            "torch",
            "torch=",
            "torch=abc",
            "tensorflow=2.0",
            "torch=2.6,torch=2.7",
            "python=3.11",
        ],
    )
    def test_what_cannot_be_read_is_a_usage_error_with_a_hint(self, spec):
        with pytest.raises(UsageError) as caught:
            judge_stack(spec, machine(TODAY))
        assert caught.value.hint

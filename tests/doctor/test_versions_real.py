"""A real environment with really mismatched packages: IPEX 2.8.0 beside today's torch.

The wheel (50 MB, from PyPI) lies in an environment of its own that sees the packages of
the one the tests run in; its torch stays untouched.
"""

import json
import shlex
import sys
import sysconfig
from importlib import metadata, util

import pytest
from in_process import ran

IPEX = "2.8.0"

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.slow,
    pytest.mark.skipif(util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.version_info >= (3, 14), reason="IPEX has no wheel for this Python"),
]


DEEP = """
from cputune.doctor.deep import imports
from cputune.host import LiveHost
from cputune.probing import probe
host = LiveHost()
for finding in imports(probe(host), host):
    print(finding.evidence, finding.command, sep="\\n")
"""


def run(*argv, timeout=240):
    return ran(argv, timeout=timeout)


def pip(python, *arguments):
    return run(sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments)


def doctor(python, *options):
    done = run(python, "-m", "cputune", "doctor", "--json", *options)
    assert done.stdout, done.stderr
    return {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.fixture(scope="module")
def mismatched(tmp_path_factory):
    """The interpreter of an environment with IPEX 2.8.0 and another torch."""
    if metadata.version("torch").startswith(f"{IPEX[:3]}."):
        pytest.skip("this torch fits IPEX")
    folder = tmp_path_factory.mktemp("mismatched")
    assert run(sys.executable, "-m", "venv", "--without-pip", str(folder)).returncode == 0
    python = str(folder / "bin" / "python")
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    here = sysconfig.get_path("purelib")
    beside = f"import site; site.addsitedir({here!r})\n"
    (folder / packages.stdout.strip() / "beside.pth").write_text(beside)
    installed = pip(python, "install", "--no-deps", f"intel_extension_for_pytorch=={IPEX}")
    if installed.returncode:
        pytest.skip(f"the wheel of IPEX cannot be had: {installed.stderr.strip()[-200:]}")
    return python


def test_the_mismatch_is_found_without_importing_anything(mismatched):
    torch = metadata.version("torch")
    found = doctor(mismatched)["ipex-ended"]
    assert found["severity"] == "error"
    assert found["evidence"].startswith(
        f"intel_extension_for_pytorch {IPEX} was built for torch {IPEX[:3]}, not {torch};"
    )
    assert "stay in the IPEX era: pip install torch==2.8.0" in found["remedy"]


@pytest.mark.torch
def test_deep_imports_it_and_lives(mismatched):
    done = run(mismatched, "-c", DEEP)
    assert done.returncode == 0, done.stderr
    assert "import torch, intel_extension_for_pytorch' ended with 1" in done.stdout
    assert done.stdout.rstrip().endswith("pip uninstall -y intel_extension_for_pytorch")


def test_after_the_cure_the_finding_is_gone(mismatched):
    cure = shlex.split(doctor(mismatched)["ipex-ended"]["command"])
    assert cure == ["pip", "uninstall", "-y", "intel_extension_for_pytorch"]
    assert pip(mismatched, *cure[1:]).returncode == 0
    assert "ipex-ended" not in doctor(mismatched)

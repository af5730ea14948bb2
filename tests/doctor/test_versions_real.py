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
CODES = "ipex-ended,deep-import"

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.version_info >= (3, 14), reason="IPEX has no wheel for this Python"),
]


def pip(python, *arguments):
    return ran((sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments))


def doctor(python):
    done = ran((python, "-m", "cputune", "doctor", "--json", "--deep", "--only", CODES))
    assert done.stdout, done.stderr
    return {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_a_mismatch_is_found_its_import_survived_and_the_fix_helps(tmp_path):
    if metadata.version("torch").startswith(f"{IPEX[:3]}."):
        pytest.skip("this torch fits IPEX")
    assert ran((sys.executable, "-m", "venv", "--without-pip", str(tmp_path))).returncode == 0
    python = str(tmp_path / "bin" / "python")
    site = sysconfig.get_path("purelib", vars={"base": str(tmp_path)})
    beside = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    with open(f"{site}/beside.pth", "w") as file:
        file.write(beside)
    installed = pip(python, "install", "--no-deps", f"intel_extension_for_pytorch=={IPEX}")
    if installed.returncode:
        pytest.skip(f"the wheel of IPEX cannot be had: {installed.stderr.strip()[-200:]}")
    found = doctor(python)
    said = f"intel_extension_for_pytorch {IPEX} was built for torch {IPEX[:3]}, not "
    assert found["ipex-ended"]["evidence"].startswith(said)
    assert "import intel_extension_for_pytorch: " in found["deep-import"]["evidence"]
    fixes = {finding["command"].removeprefix(f"{python} -m ") for finding in found.values()}
    assert fixes == {"pip uninstall -y intel_extension_for_pytorch"}
    assert pip(python, *shlex.split(fixes.pop())[1:]).returncode == 0
    assert doctor(python) == {}

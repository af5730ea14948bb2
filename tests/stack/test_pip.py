"""pip itself is asked whether what is printed can be installed: the 60 most common misfits."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import product

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cputune.stack import Versions
from cputune.stack.fit import misfits
from cputune.stack.tables import short_name
from cputune.stack.version_changes import advised_changes

pytestmark = [pytest.mark.matrix, pytest.mark.slow, pytest.mark.timeout(600)]

MISFITS = [
    # a new transformers beside the accelerate of an old guide
    *product(
        ("transformers=4.57.6", "transformers=5.5.4", "transformers=5.23.0"),
        ("accelerate=0.20.3", "accelerate=0.21.0", "accelerate=0.34.2", "accelerate=1.1.1"),
    ),
    # an old transformers beside the newest accelerate
    *product(
        ("transformers=4.33.3", "transformers=4.35.2", "transformers=4.38.2"),
        ("accelerate=1.7.0", "accelerate=1.15.0"),
    ),
    # an old torch beside a new transformers
    *product(
        ("torch=1.13.1", "torch=2.0.1", "torch=2.2.2", "torch=2.3.1"),
        ("transformers=5.5.4", "transformers=5.20.2", "transformers=5.23.0"),
    ),
    *product(("torch=2.0.1", "torch=1.13.1"), ("transformers=4.57.6",)),
    # torch was upgraded, and what is built for it was not
    *product(
        ("torch=2.6.0", "torch=2.8.0", "torch=2.13.0"),
        ("torchvision=0.15.2", "torchvision=0.20.1", "torchaudio=2.5.1"),
    ),
    # what transformers pins
    *product(
        ("transformers=4.44.2", "transformers=4.57.6", "transformers=5.23.0"),
        ("tokenizers=0.15.2", "huggingface_hub=0.17.3"),
    ),
    ("transformers=4.44.2", "huggingface_hub=2.4.0"),
    ("transformers=4.57.6", "huggingface_hub=1.9.2"),
    # libraries above it
    *product(("transformers=4.57.6", "transformers=5.23.0"), ("trl=0.12.2",)),
    ("trl=1.16.0", "transformers=4.46.3"),
    ("trl=0.20.0", "accelerate=1.1.1"),
    ("peft=0.21.2", "accelerate=0.20.3"),
    ("datasets=2.14.7", "huggingface_hub=2.4.0"),
    # numpy 2, and IPEX
    ("torch=2.2.2", "numpy=2.0.0"),
    ("accelerate=0.33.0", "numpy=2.0.0"),
    ("torch=2.15.0", "ipex=2.8.0"),
    ("torch=2.6.0", "ipex=2.8.0"),
    ("torch=2.8.0", "ipex=2.8.0", "transformers=5.23.0", "accelerate=1.15.0"),
]


def test_there_are_sixty() -> None:
    assert len(MISFITS) >= 60


@pytest.mark.parametrize("stack", MISFITS, ids=",".join)
def test_pip_can_install_what_is_advised(stack: tuple[str, ...]) -> None:
    named = dict(each.split("=") for each in stack)
    asked = Versions(python=Version("3.11"), **{n: Version(text) for n, text in named.items()})
    assert misfits(asked) or asked.ipex is not None
    _, command = advised_changes(asked)
    for part in command.split(" && "):
        words = shlex.split(part)
        assert words[:2] in (["pip", "install"], ["pip", "uninstall"])
        for word in words[2:] if words[1] == "install" else ():
            assert not word.startswith("-"), "no page but PyPI is needed for these"
            assert installs(word), word


@cache
def installs(requirement: str) -> bool:
    """Whether pip finds a release for Python 3.11; of torch, which is gigabytes, in its index."""
    pip = (sys.executable, "-m", "pip")
    wanted = Requirement(requirement)
    if short_name(wanted.name) == "torch":
        done = run(*pip, "index", "versions", "torch", "--python-version", "3.11")
        there = re.findall(r"[\d.]+", done.partition("Available versions:")[2])
        return any(wanted.specifier.contains(version) for version in there)
    target = ("--target", "unused", "--python-version", "3.11", "--only-binary", ":all:")
    return "Would install" in run(*pip, "install", "--dry-run", "--no-deps", *target, requirement)


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if "No matching distribution" not in done.stderr:
        assert done.returncode == 0, done.stderr
    return done.stdout

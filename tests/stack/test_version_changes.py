"""The smallest change that makes versions fit."""

import shlex

import pytest
from hypothesis import given, settings, strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from rows import every_row, like_others

from cputune.stack import Versions, load
from cputune.stack.fit import declared_by, misfits
from cputune.stack.tables import DISTRIBUTIONS
from cputune.stack.version_changes import (
    advised_changes,
    smallest_change,
    version_change,
    version_changes,
)

STACK = load()


def versions(**texts):
    return Versions(**{name: Version(text) for name, text in texts.items()})


WITHOUT_IPEX = "pip uninstall -y intel_extension_for_pytorch"


@every_row(
    ("stack", "ipex_era", "today"),
    [
        (
            {"torch": "2.13.0", "ipex": "2.8.0", "transformers": "5.23.0"},
            "pip install torch==2.8.0 transformers==4.55.4",
            WITHOUT_IPEX,
        ),
        (
            {"torch": "2.6.0", "ipex": "2.8.0"},
            "pip install intel_extension_for_pytorch==2.6.0",
            f"{WITHOUT_IPEX} && pip install torch==2.13.0",
        ),
        (
            {"torch": "2.8.0", "ipex": "2.8.0", "transformers": "4.55.4", "accelerate": "1.8.1"},
            "pip install accelerate==1.7.0",
            f"{WITHOUT_IPEX} && pip install torch==2.13.0 transformers==5.23.0 accelerate==1.15.0",
        ),
        (
            {"torch": "2.2.2", "numpy": "2.1.0"},
            "pip install 'numpy<2'",
            "pip install torch==2.13.0",
        ),
    ],
)
def test_the_smallest_change_each_way(stack, ipex_era, today):
    asked = versions(python="3.11.9", **stack)
    assert version_change("ipex", asked).command() == ipex_era
    assert version_change("today", asked).command() == today


@every_row(
    ("era", "stays", "goes"),
    [
        ("today", {"torch": "2.9.1"}, {"torch": "2.8.0"}),
        ("today", {"transformers": "4.57.1"}, {"transformers": "4.56.2"}),
        ("today", {"accelerate": "1.13.0"}, {"accelerate": "1.12.0"}),
        ("today", {"torch": "2.13.0"}, {"torch": "2.13.0", "oneccl": "2.8.0"}),
        ("ipex", {"torch": "2.8.0", "ipex": "2.8.0"}, {"torch": "2.9.1", "ipex": "2.8.0"}),
        ("ipex", {"accelerate": "1.12.0"}, {"accelerate": "1.13.0"}),
        ("ipex", {"transformers": "4.55.4"}, {"transformers": "4.57.1"}),
        ("ipex", {"torch": "2.8.0", "numpy": "2.0.0"}, {"torch": "2.2.2", "numpy": "2.0.0"}),
        # IPEX that nobody calls is not of its era
        (
            "ipex",
            {"torch": "2.6.0", "ipex": "2.6.0", "accelerate": "1.12.0"},
            {"torch": "2.8.0", "ipex": "2.8.0", "accelerate": "1.12.0"},
        ),
    ],
)
def test_what_is_of_an_era_stays_as_it_is(era, stays, goes):
    assert version_change(era, versions(python="3.10", **stays)).changes == ()
    assert version_change(era, versions(python="3.10", **goes)).changes != ()


@every_row(
    ("stack", "command"),
    [
        # the package that is too old goes up, and nothing else
        (
            {"torch": "2.6.0", "transformers": "4.57.6", "accelerate": "0.20.3"},
            "pip install accelerate==1.15.0",
        ),
        ({"transformers": "5.22.2", "accelerate": "1.2.1"}, "pip install accelerate==1.15.0"),
        # a newer release of the same major version, if one fits
        ({"transformers": "4.35.2", "accelerate": "1.15.0"}, "pip install transformers==4.57.6"),
        (
            {"torch": "2.13.0", "transformers": "4.36.2", "accelerate": "0.20.0"},
            "pip install accelerate==0.34.2",
        ),
        # what is built for a torch follows it, up or down
        (
            {"torch": "2.5.1", "torchvision": "0.20.1", "transformers": "5.23.0"},
            "pip install torch==2.13.0 torchvision==0.28.0",
        ),
        ({"torch": "2.6.0", "torchvision": "0.28.0"}, "pip install torchvision==0.21.0"),
        # what has ended is removed if no release of it fits
        (
            {"torch": "2.15.0", "ipex": "2.8.0"},
            "pip uninstall -y intel_extension_for_pytorch",
        ),
        (
            {"torch": "2.8.0", "ipex": "2.8.0", "transformers": "4.55.4", "accelerate": "0.20.3"},
            "pip install accelerate==1.7.0",
        ),
        ({"transformers": "5.23.0", "trl": "0.12.2"}, "pip install trl==0.29.1"),
    ],
)
def test_the_smallest_upgrade(stack, command):
    said, found = advised_changes(versions(python="3.11", **stack))
    assert found == command
    assert (said is None) == ("ipex" not in stack)


def test_nothing_is_advised_if_nothing_is_wrong():
    asked = versions(python="3.11", torch="2.13.0", transformers="5.23.0", accelerate="1.15.0")
    assert advised_changes(asked) == (None, None)
    assert smallest_change(asked) is None


PYTHONS = st.sampled_from(["3.10", "3.11", "3.12"])
RELEASED = [
    (name, str(release)) for name, releases in STACK.releases().items() for release in releases
]


@settings(max_examples=30, deadline=None)
@given(PYTHONS, st.lists(st.sampled_from(RELEASED), min_size=2, max_size=4))
def test_every_change_fits_and_can_be_installed(python, stack):
    """Each pinned release exists, and with all that stays it is what every package declares."""
    asked = versions(python=python, **dict(stack))
    change = smallest_change(asked)
    if change is None:
        return
    assert misfits(change.result) == ()
    for name, version in change.changes:
        assert version is None or version in STACK.releases()[name]
    for name in DISTRIBUTIONS:
        for other, specifier in declared_by(name, change.result.get(name)):
            there = change.result.get(other)
            assert there is None or there in SpecifierSet(specifier)
    for requirement in requirements(change.command()):
        assert list(requirement.specifier.filter(RELEASES[requirement.name]))


RELEASES = {DISTRIBUTIONS[name]: releases for name, releases in STACK.releases().items()}


def requirements(command):
    """The requirements of the pip lines of a command."""
    for line in command.split(" && "):
        words = shlex.split(line)
        if words[:2] == ["pip", "install"]:
            for word, before in zip(words[2:], words[1:], strict=False):
                if not word.startswith("-") and not before.startswith("-"):
                    yield Requirement(word)


def test_a_python_that_no_stack_has_wheels_for_is_reported():
    said, command = advised_changes(versions(python="3.6", torch="2.13.0"))
    assert "No stack in the tables has wheels for this Python" in said
    assert command is None


@every_row("torch", [str(row.version) for row in STACK.torch])
@pytest.mark.parametrize("python", ["3.10", *like_others(["3.8", "3.12"])])
def test_every_way_leads_to_a_stack_that_fits(torch, python):
    others = {"transformers": "4.30.2", "accelerate": "1.15.0", "numpy": "2.4.0"}
    asked = versions(python=python, torch=torch, ipex="2.4.0", oneccl="1.12.0", **others)
    for way in version_changes(asked):
        assert misfits(way.result) == ()
        assert dict(way.changes).keys() <= {*STACK.era("ipex").versions, "oneccl", "numpy"}

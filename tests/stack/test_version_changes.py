"""The smallest change that makes versions fit."""

import pytest
from packaging.version import Version

from cputune.stack import Versions, load
from cputune.stack.fit import misfits
from cputune.stack.version_changes import advised_changes, version_change, version_changes

STACK = load()


def versions(**texts):
    return Versions(**{name: Version(text) for name, text in texts.items()})


@pytest.mark.parametrize(
    ("stack", "ipex_era", "today"),
    [
        (
            {"torch": "2.13.0", "ipex": "2.8.0", "transformers": "5.23.0"},
            "pip install torch==2.8.0 transformers==4.55.4",
            "pip uninstall -y intel_extension_for_pytorch",
        ),
        (
            {"torch": "2.6.0", "ipex": "2.8.0"},
            "pip install intel_extension_for_pytorch==2.6.0",
            "pip uninstall -y intel_extension_for_pytorch && pip install torch==2.13.0",
        ),
        (
            {
                "torch": "2.8.0",
                "ipex": "2.8.0",
                "transformers": "4.55.4",
                "accelerate": "1.8.1",
            },
            "pip install accelerate==1.7.0",
            "pip uninstall -y intel_extension_for_pytorch && "
            "pip install torch==2.13.0 transformers==5.23.0 accelerate==1.15.0",
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


@pytest.mark.parametrize(
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


def test_what_a_complete_stack_lacks_is_added():
    for era, added in (("today", 2), ("ipex", 3)):
        way = version_change(era, versions(python="3.11", torch="2.8.0"), complete=True)
        assert len([name for name, _ in way.changes if name != "torch"]) == added


@pytest.mark.parametrize(
    ("stack", "way"),
    [
        ({"torch": "2.6.0", "oneccl": "2.8.0"}, "oneccl_bind_pt==2.6.0 -f "),
        ({"torch": "1.12.1", "ipex": "1.13.0"}, "intel_extension_for_pytorch==1.12.300 -f "),
        ({"torch": "2.6.0", "ipex": "2.8.0"}, "intel_extension_for_pytorch==2.6.0"),
    ],
)
def test_only_what_pypi_lacks_comes_from_a_page(stack, way):
    command = version_change("ipex", versions(python="3.10", **stack)).command()
    assert way in command
    assert (" -f " in command) is way.endswith(" -f ")


def test_both_ways_are_said_the_smaller_one_first():
    stack = versions(python="3.11", torch="2.13.0", ipex="2.8.0", transformers="5.23.0")
    said, command = advised_changes(stack)
    assert said == (
        "Go to today's stack: pip uninstall -y intel_extension_for_pytorch; "
        "or stay in the IPEX era: pip install torch==2.8.0 transformers==4.55.4."
    )
    assert command == "pip uninstall -y intel_extension_for_pytorch"


def test_torch_stays_where_another_accelerate_fits_beside_it():
    stack = versions(python="3.11", torch="2.13.0", transformers="4.36.2", accelerate="0.20.0")
    said, command = advised_changes(stack)
    assert command == "pip install accelerate==0.34.2"
    assert said.startswith(f"Stay with torch 2.13.0: {command}; or stay in the IPEX era: ")


@pytest.mark.parametrize(
    ("stack", "told"),
    [
        ({"torch": "2.6.0+cpu", "transformers": "5.23.0", "accelerate": "1.1.1"}, True),
        ({"torch": "2.6.0", "transformers": "5.23.0", "accelerate": "1.1.1"}, False),
        ({"torch": "2.8.0+cpu", "ipex": "2.6.0", "accelerate": "1.1.1"}, True),
        ({"accelerate": "1.1.1", "transformers": "4.56.2"}, False),
    ],
)
def test_a_cpu_build_is_told_where_to_come_from(stack, told):
    said, _ = advised_changes(versions(python="3.11", **stack))
    assert ("--extra-index-url https://download.pytorch.org/whl/cpu" in said) is told


def test_a_python_that_no_stack_has_wheels_for_is_told():
    said, command = advised_changes(versions(python="3.6", torch="2.13.0"))
    assert "No stack in the tables has wheels for this Python" in said
    assert command is None


def test_a_python_without_ipex_leaves_one_way():
    (way,) = version_changes(versions(python="3.14", torch="2.13.0", ipex="2.8.0"))
    assert way.says == "today's stack"


@pytest.mark.parametrize("torch", [str(row.version) for row in STACK.torch])
@pytest.mark.parametrize("python", ["3.8", "3.10", "3.12"])
def test_every_way_leads_to_a_stack_that_fits(torch, python):
    asked = versions(
        python=python,
        torch=torch,
        ipex="2.4.0",
        oneccl="1.12.0",
        transformers="4.30.2",
        accelerate="1.15.0",
        numpy="2.4.0",
    )
    for way in version_changes(asked):
        assert misfits(way.result) == ()
        assert dict(way.changes).keys() <= {*STACK.era("ipex").versions, "oneccl", "numpy"}

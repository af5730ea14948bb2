"""The smallest change that makes versions fit."""

import pytest
from packaging.version import Version

from cputune.stack import Versions, load
from cputune.stack.fit import misfits
from cputune.stack.ways import way_out, ways_out

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
    assert way_out("ipex", asked).command() == ipex_era
    assert way_out("today", asked).command() == today


def test_wheels_that_pypi_does_not_have_come_from_their_page():
    way = way_out("ipex", versions(python="3.10", torch="1.12.1", oneccl="1.12.0"))
    assert way.command() == (f"pip install oneccl_bind_pt==1.12.100 -f {STACK.wheels['oneccl']}")


def test_a_python_without_ipex_leaves_one_way():
    (way,) = ways_out(versions(python="3.14", torch="2.13.0", ipex="2.8.0"))
    assert way.says == "today's stack"


def test_a_python_that_transformers_has_left_gets_the_newest_that_takes_it():
    way = way_out("today", versions(python="3.10", torch="2.8.0", transformers="4.50.0"))
    assert way.command() == "pip install torch==2.13.0 transformers==5.20.2"


@pytest.mark.parametrize("torch", [str(row.last) for row in STACK.torch])
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
    for way in ways_out(asked):
        assert misfits(way.result) == ()
        assert dict(way.changes).keys() <= {*STACK.era("ipex").versions, "oneccl", "numpy"}

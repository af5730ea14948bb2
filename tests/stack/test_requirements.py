"""What installed packages require of each other, and what they find."""

import pytest
from clean_machine import CLEAN, changed
from golden_texts import Golden
from rows import every_row

from cputune.doctor.checks.packages import requirement_unmet
from cputune.host.facts import Package
from cputune.stack.requirements import unmet

TRANSFORMERS = (
    "tokenizers<0.24,>=0.23",
    "numpy>=1.17",
    "huggingface-hub<3,>=2",
    'torch>=2.6; extra == "torch"',
    'deepspeed>=0.15; extra == "deepspeed"',
    'importlib_metadata; python_version < "3.8"',
    'pywin32>=300; sys_platform == "win32"',
    "not a requirement at all (",
)


def machine(requires=TRANSFORMERS, **packages):
    def package(name, version, needs=()):
        return Package(name=name, version=version, location="/venv", requires=needs)

    given = {"tokenizers": "0.23.3", "huggingface-hub": "2.4.0", **packages}
    held = {name: text and package(name, text) for name, text in given.items()}
    return changed(packages={**held, "transformers": package("transformers", "5.23.0", requires)})


def test_what_is_met_is_not_said():
    assert not list(unmet(CLEAN))
    assert not list(unmet(machine()))
    assert not list(unmet(machine(tokenizers="of today"))), "no version that can be read"
    at_an_address = machine(["tokenizers @ https://example.com/tokenizers.whl"])
    assert not list(unmet(at_an_address))


@pytest.mark.parametrize(
    ("packages", "said", "command"),
    [
        (
            {"tokenizers": "0.19.1"},
            "transformers 5.23.0 requires tokenizers<0.24,>=0.23, found 0.19.1",
            "pip install tokenizers==0.23.3",
        ),
        (
            {"huggingface-hub": None},
            "transformers 5.23.0 requires huggingface-hub<3,>=2, and it is not installed",
            "pip install 'huggingface-hub<3,>=2'",
        ),
        # of an extra a version that is there must fit; what is not there was not asked for
        (
            {"deepspeed": "0.14.0"},
            "transformers 5.23.0 requires deepspeed>=0.15, found 0.14.0",
            "pip install 'deepspeed>=0.15'",
        ),
    ],
)
def test_what_is_not_met_is_named_with_its_fix(packages, said, command):
    (finding,) = requirement_unmet(machine(**packages))
    assert (finding.evidence, finding.command) == (said, command)


def requirer(name, version, *requires):
    return Package(name=name, version=version, location="/venv", requires=requires)


def test_the_fix_of_one_breaks_no_other():
    # deepspeed of the tables needs nothing of safetensors: what it declares here is all there is
    facts = changed(
        machine(("safetensors>=0.5",), safetensors="0.3.0"),
        packages={"peft": requirer("peft", "0.21.2", "safetensors>=0.6,!=0.7.0")},
    )
    commands = {finding.command for finding in requirement_unmet(facts)}
    assert commands == {"pip install 'safetensors!=0.7.0,>=0.5,>=0.6'"}


def test_a_requirement_that_nothing_can_meet_is_not_printed():
    """torch==2.0.1 and torch>=2.6: it is the package that wants the old torch which goes."""
    ao = requirer("torchao", "0.1.0", "torch==2.0.1")
    facts = changed(machine(("torch>=2.6",)), packages={"torchao": ao, "torch": "2.13.0"})
    (finding,) = requirement_unmet(facts)
    assert finding.command == "pip install -U torchao"
    vision = requirer("torchvision", "0.15.2", "torch==2.0.1")
    facts = changed(machine(), packages={"torchvision": vision, "torch": "2.13.0"})
    (finding,) = requirement_unmet(facts)
    assert finding.command == "pip install torchvision==0.28.0"


def test_no_package_is_downgraded_if_who_requires_it_can_be_upgraded(golden: Golden):
    old = requirer("sentence-transformers", "2.0.0", "safetensors<0.4")
    facts = changed(machine(), packages={"sentence-transformers": old, "safetensors": "0.6.0"})
    (finding,) = requirement_unmet(facts)
    golden(finding.command)


@every_row(
    ("specifiers", "there"),
    [
        ("==2.0.1,>=2.0.0,>=2.6", False),
        ("<1.0,>=1.0", False),
        ("<=1.0,>=1.0", True),
        ("==1.4.*,!=1.4.0", True),
        (">=2,<3,!=2.4.0", True),
        ("~=1.4.2,<1.4", False),
        ("", True),
    ],
)
def test_whether_a_release_can_be_within_specifiers(specifiers, there):
    facts = machine([f"safetensors{specifiers}"], safetensors="99999999.0")
    possible = {one.possible for one in unmet(facts)}
    assert possible == ({there} if specifiers else set())


def test_a_marker_is_asked_of_the_machine_that_is_looked_at():
    text = 'tomli>=2; python_version < "3.11" and platform_machine == "aarch64"'
    facts = machine(requires=(text,))
    assert not list(unmet(facts))
    old = changed(facts, python="3.10.2", cpu={"architecture": "aarch64"})
    assert [one.name for one in unmet(old)] == ["tomli"]


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0", "2.13.0a0+git1234"])
def test_a_local_or_a_development_version_meets_what_its_release_meets(version):
    vision = Package(
        name="torchvision", version="0.28.0", location="/venv", requires=("torch>=2.12",)
    )
    assert not list(unmet(changed(packages={"torch": version, "torchvision": vision})))

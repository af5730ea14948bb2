"""What installed packages require of each other, and what they find."""

from clean_machine import CLEAN, changed
from golden_texts import Golden

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


def test_no_package_is_downgraded_if_who_requires_it_can_be_upgraded(golden: Golden):
    old = requirer("sentence-transformers", "2.0.0", "safetensors<0.4")
    facts = changed(machine(), packages={"sentence-transformers": old, "safetensors": "0.6.0"})
    (finding,) = requirement_unmet(facts)
    golden(finding.command)


def test_a_marker_is_asked_of_the_machine_that_is_looked_at():
    text = 'tomli>=2; python_version < "3.11" and platform_machine == "aarch64"'
    facts = machine(requires=(text,))
    assert not list(unmet(facts))
    old = changed(facts, python="3.10.2", cpu={"architecture": "aarch64"})
    assert [one.name for one in unmet(old)] == ["tomli"]

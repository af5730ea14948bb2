"""The allocator that is not here: how this very machine comes by it."""

from __future__ import annotations

from typing import Any

from clean_machine import TCMALLOC, changed
from golden_texts import Golden
from rows import every_row

from cputune import Finding, diagnose
from cputune.doctor.checks.libraries import allocator_default
from cputune.host.facts import LinuxDistribution

UBUNTU_24 = LinuxDistribution(id="ubuntu", like=("debian",), version="24.04")
DEBIAN_13 = LinuxDistribution(id="debian", version="13")
MINT = LinuxDistribution(id="linuxmint", like=("ubuntu", "debian"), version="22")
ROCKY = LinuxDistribution(id="rocky", like=("rhel", "centos", "fedora"), version="9.6")
HAIKU = LinuxDistribution(id="haiku")


def missing(distribution: LinuxDistribution | None, **changes: Any) -> Finding:
    """The finding on a machine of this distribution that has no tcmalloc."""
    settings = {"distribution": distribution, "container": changes.pop("container", None)}
    environment = {"LD_PRELOAD": None, **changes.pop("environment", {})}
    facts = changed(libraries=(), settings=settings, environment=environment, **changes)
    (found,) = [f for f in diagnose(facts).findings if f.code == "allocator-missing"]
    return found


@every_row(
    ("distribution", "command"),
    [
        (UBUNTU_24, "sudo apt-get install -y libtcmalloc-minimal4"),
        (MINT, "sudo apt-get install -y libtcmalloc-minimal4"),
        (ROCKY, "sudo dnf install -y gperftools-libs"),
        (HAIKU, None),
        (None, None),
    ],
    ids=lambda value: value.id if isinstance(value, LinuxDistribution) else None,
)
def test_the_package_is_that_of_the_distribution(
    distribution: LinuxDistribution | None, command: str | None
) -> None:
    found = missing(distribution)
    assert found.command == command
    takes = "your decision" if found.command is None else "one command"
    assert found.worth_words == f"Worth ×1.12–1.30, 2 x86 cores; {takes}."
    assert ("Install gperftools" in found.remedy) is (command is None)


def test_in_a_container_a_line_of_the_dockerfile_lasts(golden: Golden) -> None:
    found = missing(DEBIAN_13, container="docker")
    golden(found.command)
    assert found.remedy.endswith(f"RUN {found.command}")


def test_conda_needs_neither_root_nor_distribution(golden: Golden) -> None:
    found = missing(None, environment={"CONDA_PREFIX": "/opt/conda"})
    golden(found.command)
    golden(found.remedy)


def test_what_is_preloaded_stays_beside_the_allocator(golden: Golden) -> None:
    (found,) = allocator_default(changed(environment={"LD_PRELOAD": "/opt/libiomp5.so"}))
    golden(found.evidence)
    assert found.command == f"export LD_PRELOAD=/opt/libiomp5.so:{TCMALLOC}"

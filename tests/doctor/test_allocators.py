"""The allocator that is not here: how this very machine comes by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clean_machine import TCMALLOC, changed
from golden_texts import Golden
from hosts.builder import machine
from rows import every_row

import cputune
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


@every_row(
    ("text", "seen"),
    [
        (
            'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
            LinuxDistribution(id="ubuntu", like=("debian",), version="24.04"),
        ),
        (
            'ID=\'rocky\'\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"',
            LinuxDistribution(id="rocky", like=("rhel", "centos", "fedora"), version="9.6"),
        ),
        ("ID=arch\n", LinuxDistribution(id="arch")),
        ("NAME=nothing\nID=$(reboot)\n", None),
        ("", None),
    ],
)
def test_a_recorded_machine_tells_its_distribution(
    text: str, seen: LinuxDistribution | None
) -> None:
    facts = cputune.probe(machine(None, files={"etc/os-release": text}))
    assert facts.settings.distribution == seen
    assert (facts.why_unknown("settings.distribution") is None) is (seen is not None)


def test_a_recording_keeps_of_it_what_is_read(tmp_path: Path) -> None:
    from cputune.host.probing.recording import record

    text = 'PRETTY_NAME="Image of Eva"\nID=debian\nVERSION_ID="13"\nBUG_REPORT_URL="x"\n'
    replay = record(machine(None, files={"etc/os-release": text}), tmp_path / "m")
    assert cputune.probe(replay).settings.distribution == DEBIAN_13
    kept = "".join(p.read_text() for p in (tmp_path / "m").rglob("*") if p.is_file())
    assert "Eva" not in kept

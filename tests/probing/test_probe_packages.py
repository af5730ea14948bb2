"""Installed packages by their metadata: whole, damaged, twice, and conda's."""

from __future__ import annotations

import os
from pathlib import Path

from hosts.builder import machine

from cputune import probe
from cputune.host import Package
from cputune.host.metadata import read_distributions


def install(
    site: Path,
    name: str,
    version: str | None,
    *,
    requires: tuple[str, ...] = (),
    installer: str = "pip",
) -> Path:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}"]
    lines += [f"Version: {version}"] if version else []
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join([*lines, "", "Version: 9 is what the README says"]))
    (info / "INSTALLER").write_text(f"{installer}\n")
    return info


def named(found: tuple[Package, ...]) -> dict[str, str | None]:
    return {distribution.name: distribution.version for distribution in found}


def test_names_and_versions_come_from_the_directories(tmp_path: Path) -> None:
    install(tmp_path, "click", "8.1.7")
    install(tmp_path, "torch", "2.13.0+cpu", requires=("sympy", "pytest; extra == 'test'"))
    (tmp_path / "six-1.16.0-py3.11.egg-info").mkdir()
    (tmp_path / "~orch-2.6.0.dist-info").mkdir()  # pip's left-over of a broken upgrade
    (tmp_path / "~orch").mkdir()
    (tmp_path / "notes.txt").write_text("")

    found = read_distributions([str(tmp_path), str(tmp_path), str(tmp_path / "none")], None)

    assert named(found) == {"click": "8.1.7", "six": "1.16.0", "torch": "2.13.0+cpu"}
    torch = found[-1]
    assert torch.requires == ("sympy",)
    assert (torch.location, torch.installer) == (str(tmp_path), "pip")


def test_no_version_is_unknown_with_its_reason(tmp_path: Path) -> None:
    record = {"packages": [{"name": "torch", "version": None, "location": "/venv/site"}]}

    facts = probe(machine(tmp_path, record=record))

    package = facts.package("torch")
    assert package.version is None
    assert "/venv/site" in (facts.why_unknown("packages.torch.version") or "")


def test_of_two_in_one_place_the_later_counts_and_the_other_is_reported(tmp_path: Path) -> None:
    os.utime(install(tmp_path, "torch", "2.13.0"), (1_000, 1_000))
    os.utime(install(tmp_path, "torch", "2.6.0"), (2_000, 2_000))

    (torch,) = read_distributions([str(tmp_path)], None)

    assert (torch.version, torch.others) == ("2.6.0", ("2.13.0",))


def test_packages_that_only_conda_knows(tmp_path: Path) -> None:
    install(tmp_path / "site", "numpy", "2.1.0", installer="conda")
    meta = tmp_path / "conda-meta"
    meta.mkdir()
    for name in ("intel-openmp-2023.1.0-hdb19cb5_46306", "numpy-2.1.0-py311_0"):
        (meta / f"{name}.json").write_text("{}")
    for other in ("history", "zlib-1.3-h4bc722e_1.json.c~"):
        (meta / other).write_text("")

    found = read_distributions([str(tmp_path / "site")], str(tmp_path))

    assert named(found) == {"intel-openmp": "2023.1.0", "numpy": "2.1.0"}
    assert {distribution.installer for distribution in found} == {"conda"}

"""What is installed, or named, becomes versions."""

from packaging.version import Version

from cputune.stack import Versions


def test_versions_from_names():
    found = Versions.from_names({"Torch": "2.8.0+cpu", "requests": "2.0", "python": "3.11.7"})
    assert found == Versions(torch=Version("2.8.0+cpu"), python=Version("3.11.7"))

"""What is installed, or named, becomes versions."""

from packaging.version import Version
from rows import every_row
from stacks import machine

from cputune.stack import Versions, versions_of
from cputune.stack.tables import short_name


@every_row(
    ("distribution", "name"),
    [
        ("Intel-Extension-for-PyTorch", "ipex"),
        ("intel_extension_for_pytorch", "ipex"),
        ("oneccl_bind_pt", "oneccl"),
        ("oneccl-bindings-for-pytorch", "oneccl"),
        ("torch_ccl", "oneccl"),
        ("torch", "torch"),
        ("requests", None),
    ],
)
def test_a_name_in_any_spelling(distribution, name):
    assert short_name(distribution) == name


def test_versions_from_names():
    found = Versions.from_names({"Torch": "2.8.0+cpu", "requests": "2.0", "python": "3.11.7"})
    assert found == Versions(torch=Version("2.8.0+cpu"), python=Version("3.11.7"))


def test_a_version_that_cannot_be_read_is_not_an_absent_package():
    found = versions_of(machine({"torch": "from git", "accelerate": None}, python="?"))
    assert (found.torch, found.accelerate, found.python) == (None, None, None)
    assert found.unreadable == {"torch", "accelerate"}

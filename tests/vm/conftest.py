"""The guest takes minutes: only ``make test-vm`` boots it, or whoever asks for ``-m vm``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vm import image
from vm.guest import Guest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "vm" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("vm"):
                item.add_marker(pytest.mark.skip(reason="`make test-vm` boots a guest for this"))


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One guest for all tests; each leaves it as it was."""
    reason = image.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Guest(tmp_path_factory.mktemp("vm")) as booted:
        print(f"the guest booted in {booted.boot_seconds:.0f} s")
        yield booted

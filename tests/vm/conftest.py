"""The guest takes minutes: only ``make test-vm`` boots it, or whoever asks for ``-m vm``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vm import image
from vm.guest import Guest


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One guest for all tests; each leaves it as it was."""
    reason = image.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Guest(tmp_path_factory.mktemp("vm")) as booted:
        print(f"the guest booted in {booted.boot_seconds:.0f} s")
        yield booted

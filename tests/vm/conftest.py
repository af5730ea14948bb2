"""The guest takes minutes: only ``make test-vm`` boots it, or whoever asks for ``-m vm``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "vm" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("vm"):
                item.add_marker(pytest.mark.skip(reason="`make test-vm` boots a guest for this"))

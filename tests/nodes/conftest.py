"""Hosts made of namespaces: ``make test-nodes`` makes them, or whoever asks for ``-m nodes``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nodes import install
from nodes.cluster import Cluster, two_hosts

LONGEST_SECONDS = 900
"""Of a test, on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    asked = [item for item in items if item.get_closest_marker("nodes")]
    reason = install.why_not() if asked else None
    for item in asked:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """Two hosts that have nothing odd, for the tests of a module."""
    with two_hosts() as made:
        yield made

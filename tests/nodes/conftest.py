"""Hosts made of namespaces: ``make test-nodes`` makes them, or whoever asks for ``-m nodes``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nodes import install
from nodes.cluster import Cluster, two_hosts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "nodes" in config.option.markexpr
    reason = install.why_not() if asked else "`make test-nodes` makes hosts for this"
    for item in items:
        if reason is not None and item.get_closest_marker("nodes"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """Two hosts that have nothing odd, for the tests of a module."""
    with two_hosts() as made:
        yield made

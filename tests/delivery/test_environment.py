"""What every rank is started with, and whether the hub is there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from cputune import Plan
from cputune.host.hub import hub_reachable
from cputune.plans.delivery.environment import plan_variables

IPEX_ERA = {
    "torch": "2.8.0",
    "intel_extension_for_pytorch": "2.8.0",
    "transformers": "5.0.0",
    "accelerate": "1.7.0",
}
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """The address of a hub that says this, once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", False),
        (b"rubbish\r\n\r\n", False),
    ],
)
def test_a_hub_is_there_that_answers(
    answer: bytes, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with server(answer) as address:
        assert hub_reachable({"HF_ENDPOINT": address}) is there


@pytest.mark.parametrize("address", ["hub.internal", "http://hub internal", "http://[hub"])
def test_what_is_no_address_is_not_reachable(address: str) -> None:
    assert not hub_reachable({"HF_ENDPOINT": address})


@pytest.mark.parametrize(
    ("plan", "said"),
    [(ONE, "false"), (replace(ONE, ipex=True), "true"), (replace(ONE, as_found=True), None)],
)
def test_ipex_is_switched_off_if_a_plan_does_without_it(plan: Plan, said: str | None) -> None:
    assert plan_variables(plan, IPEX_ERA).get("ACCELERATE_USE_IPEX") == said

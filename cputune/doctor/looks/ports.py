"""Whether other hosts reach the ports of this one, and this one theirs. Python 3.7 is enough.

    python ports.py '{"listen": [["", 29500, 1]], "reach": [["", "10.0.0.2", 40123, "node2"]],
                     "seconds": 6}'

``listen`` has an address ("" for all), a port, and how many other hosts will connect to it;
``reach`` has a name for the answer, an address or host name, a port, and the host. The script
listens, prints ``{"ready": true}``, and reads a line that ends the wait for slower hosts; its
``absent`` are hosts that did not come. From then on it has ``seconds``. Each connection carries 64
KiB and an answer. It prints one line of JSON: why it cannot listen on a port, and of each place in
``reach`` why it cannot connect, or "".
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time

# Wait before a refused connection is tried again: the other host may not listen yet.
AGAIN_SECONDS = 0.1

# More than one packet: a path may let small ones through and drop large ones.
LARGE = b"x" * (64 << 10)


def as_text(error: Exception) -> str:
    """The system's message for an error, without the addresses that asyncio adds."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read all that another host sends, then answer."""
    try:
        await reader.readexactly(len(LARGE))
        writer.write(b"k")
        await writer.drain()
    except (OSError, EOFError):  # the other host hung up
        pass
    finally:
        writer.close()


async def reach(address: str, port: int, deadline: float) -> str:
    """Why a connection fails, or "". A refused one is tried again: the host may not listen yet."""
    reason = "no time"
    while time.monotonic() < deadline:
        late = "no answer"
        try:
            seconds_left = deadline - time.monotonic()
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(address, port), seconds_left
            )
            late = "64 KiB do not get through"
            writer.write(LARGE)
            received = await asyncio.wait_for(reader.read(1), deadline - time.monotonic())
            writer.close()
            return "" if received else "it hung up"
        except asyncio.TimeoutError:
            return late
        except (OSError, UnicodeError) as error:
            reason = as_text(error)
            await asyncio.sleep(AGAIN_SECONDS)
    return reason


def wait_for_others() -> list[str]:
    """Wait until all hosts listen; gives those that never will. Ends if its input is closed."""
    print(json.dumps({"ready": True}), flush=True)
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    absent = json.loads(line)["absent"]
    return list(absent)


async def try_ports(
    listen: list[tuple[str, int, int]], others: list[tuple[str, str, int, str]], seconds: float
) -> dict[str, dict[str, str]]:
    """Listen, and when all others do, connect to them; returns the answer that is printed."""
    come = asyncio.Semaphore(0)
    outcome: dict[str, dict[str, str]] = {"closed": {}, "reached": {}}

    open_to: list[int] = []

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        come.release()

    for address, port, number in listen:
        try:
            await asyncio.start_server(welcome, address or None, port)
            open_to.append(number)
        except OSError as error:
            outcome["closed"][str(port)] = as_text(error)

    absent = wait_for_others()
    expected = sum(max(0, number - len(absent)) for number in open_to)
    deadline = time.monotonic() + seconds

    async def call(name: str, address: str, port: int, host: str) -> None:
        if host not in absent:
            outcome["reached"][name] = await reach(address, port, deadline - 0.5)

    await asyncio.gather(*(call(*other) for other in others))
    try:
        for _ in range(expected):
            await asyncio.wait_for(come.acquire(), deadline - time.monotonic())
    except asyncio.TimeoutError:
        pass
    return outcome


async def main() -> None:
    """Print the answer, and end without waiting for connections that hang."""
    task = json.loads(sys.argv[1])
    outcome = await try_ports(task["listen"], task["reach"], task["seconds"])
    print(json.dumps(outcome), flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())

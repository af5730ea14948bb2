"""Whether this host is reached on ports, and reaches those of others. Python 3.7 is enough.

    python meet.py '{"listen": [["", 29500, 1]], "reach": [["node2", "10.0.0.2", 40123]],
                     "seconds": 6}'

``listen`` has an address ("" for all), a port and how many others will connect to it; ``reach``
has a name for the answer, an address or host name, and a port. Prints one line of JSON: of each
port that cannot be listened on why, and of each other host "" or why it was not reached. It
listens until all have come, or until the seconds are over. Through each connection go 64 KiB, which
are answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time

AGAIN_SECONDS = 0.1
LARGE = b"x" * (64 << 10)


def in_words(error: Exception) -> str:
    """The system's words for an error; asyncio's own have addresses in them."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what another host sends, and answer."""
    try:
        await reader.readexactly(len(LARGE))
        writer.write(b"k")
        await writer.drain()
    except (OSError, EOFError):  # the other host hung up
        pass
    finally:
        writer.close()


async def reach(address: str, port: int, deadline: float) -> str:
    """Why a port is not reached, "" where it is. One that refuses may not listen yet."""
    why = "no time"
    while time.monotonic() < deadline:
        late = "no answer"
        try:
            left = deadline - time.monotonic()
            reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), left)
            late = "64 KiB do not get through"
            writer.write(LARGE)
            said = await asyncio.wait_for(reader.read(1), deadline - time.monotonic())
            writer.close()
            return "" if said else "it hung up"
        except asyncio.TimeoutError:
            return late
        except (OSError, UnicodeError) as error:
            why = in_words(error)
            await asyncio.sleep(AGAIN_SECONDS)
    return why


async def meet(
    listen: list[tuple[str, int, int]], others: list[tuple[str, str, int]], seconds: float
) -> dict[str, dict[str, str]]:
    """Listen and connect at the same time, and say what came of it."""
    deadline = time.monotonic() + seconds
    come, expected = asyncio.Semaphore(0), 0
    told: dict[str, dict[str, str]] = {"closed": {}, "reached": {}}

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        come.release()

    for address, port, number in listen:
        try:
            await asyncio.start_server(welcome, address or None, port)
            expected += number
        except OSError as error:
            told["closed"][str(port)] = in_words(error)

    async def call(name: str, address: str, port: int) -> None:
        told["reached"][name] = await reach(address, port, deadline - 0.5)

    await asyncio.gather(*(call(*other) for other in others))
    try:
        for _ in range(expected):
            await asyncio.wait_for(come.acquire(), deadline - time.monotonic())
    except asyncio.TimeoutError:
        pass
    return told


async def main() -> None:
    """Say it, and end at once: connections that hang and names that are looked up end with us."""
    asked = json.loads(sys.argv[1])
    told = await meet(asked["listen"], asked["reach"], asked["seconds"])
    print(json.dumps(told), flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())

"""A real HTTP server on this machine that counts its simultaneous requests, and sources that other processes read."""

import asyncio
import os
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from tests.dataset.functions import keep
from tests.promptness import PATIENCE_SECONDS as PATIENCE_SECONDS


def dataset_of(source: Any, kind: str) -> ps.Dataset:
    """Return small batches of a source's shuffled records, "indexed" or "ordered"."""
    rows = ps.read(source, seed=3).shuffle()
    return rows.batch(4) if kind == "indexed" else rows.filter(keep).batch(4)


class Server:
    """A server that answers `/key` with the key's square; but for some keys, the first `together` answers wait."""

    def __init__(self, together: int, at_once: Iterable[int]) -> None:
        self.together = together
        self.at_once = frozenset(at_once)
        self.port = 0
        self.now = 0
        self.most = 0
        self.answered: list[int] = []
        self._came = 0
        self._all_came = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        key = int((await reader.readuntil(b"\r\n\r\n")).split()[1].removeprefix(b"/"))
        self.now += 1
        self.most = max(self.most, self.now)
        self._came += key not in self.at_once
        if self._came >= self.together:
            self._all_came.set()
        if key not in self.at_once:
            await asyncio.wait_for(self._all_came.wait(), PATIENCE_SECONDS)
        self.now -= 1
        self.answered.append(key)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n%d" % (key * key))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@contextmanager
def serving(together: int, at_once: Iterable[int] = ()) -> Generator[Server]:
    """Run a server in a thread of its own."""
    server = Server(together, at_once)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    ending = asyncio.Event()

    async def serve() -> None:
        async with await asyncio.start_server(server.answer, "127.0.0.1", 0, backlog=1024) as listening:
            server.port = listening.sockets[0].getsockname()[1]
            started.set()
            await ending.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(PATIENCE_SECONDS)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()


class OverHttp:
    """A source of squares that a server computes."""

    def __init__(self, port: int, length: int) -> None:
        self.port = port
        self.length = length

    def __len__(self) -> int:
        return self.length

    async def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Request each key."""
        return [await self._ask(key) for key in keys.tolist()]

    async def _ask(self, key: int) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"GET /%d HTTP/1.0\r\n\r\n" % key)
            return np.int64((await reader.read()).rpartition(b"\r\n\r\n")[2])
        finally:
            writer.close()
            await writer.wait_closed()


class Noted:
    """Numbers of an async source, and a function of them that waits at one; both note in files what they get."""

    def __init__(self, folder: Path) -> None:
        self.requested, self.computed, self.gate = folder / "requested", folder / "computed", folder / "gate"
        os.mkfifo(self.gate)

    def __len__(self) -> int:
        return 1000

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the keys."""
        await asyncio.sleep(0)
        numbers = [int(key) for key in keys]
        _append(self.requested, numbers)
        return numbers

    def compute(self, number: int) -> int:
        """Return the number."""
        _append(self.computed, [number])
        if number == 16:
            self.gate.read_bytes()
        return number

    def not_computed(self) -> set[int]:
        """Return the numbers that were requested, and not computed."""
        requested, computed = (set(map(int, path.read_text().split())) for path in (self.requested, self.computed))
        return requested - computed


class Squares:
    """A source of two squares."""

    def __len__(self) -> int:
        return 2

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return squares."""
        await asyncio.sleep(0)
        return [(key + 5) ** 2 for key in keys.tolist()]


def _append(path: Path, numbers: list[int]) -> None:
    with path.open("a") as file:
        file.writelines(f"{number}\n" for number in numbers)

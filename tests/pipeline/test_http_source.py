"""Pipelines of coroutines read from a real HTTP server, with as many concurrent requests as allowed and never more."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Literal

import pytest

pytest.importorskip("aiohttp")  # installed only for some of the tests

from aiohttp import ClientSession, TCPConnector, web

from penstock.pipeline import PipelineBuilder
from tests.promptness import PATIENCE_SECONDS

AT_ONCE = 100
NUM_REQUESTS = 150
LATENCY_SECONDS = 0.02


class _Server:
    """A server on a real socket, in a thread of its own, that counts its concurrent requests.

    It answers no request before `expected` requests are open at the same time, and from then on, if it `answers`, each
    after a latency. So the number of concurrent requests depends on the client, not on the machine's speed.
    """

    def __init__(self, expected: int, *, answers: bool) -> None:
        self.url = ""
        self.peak = 0
        self.full = threading.Event()  # set when `expected` requests are open
        self.idle = threading.Event()  # set when no request is open
        self._expected = expected
        self._answers = answers
        self._present = 0
        self._open = asyncio.Event()
        self.stop = asyncio.Event()

    async def number(self, request: web.Request) -> web.Response:
        """Answer with the number in the path."""
        with self._counted():
            await asyncio.wait_for(self._open.wait(), PATIENCE_SECONDS)
            await asyncio.sleep(LATENCY_SECONDS)
            return web.Response(text=request.match_info["number"])

    async def lines(self, request: web.Request) -> web.StreamResponse:
        """Send one number per line, without an end."""
        with self._counted():
            response = web.StreamResponse()
            await response.prepare(request)
            line = 0
            while True:
                await response.write(f"{line}\n".encode())
                line += 1

    async def serve(self, ready: "Future[asyncio.AbstractEventLoop]") -> None:
        application = web.Application()
        application.router.add_get("/numbers/{number}", self.number)
        application.router.add_get("/lines", self.lines)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set_result(asyncio.get_running_loop())
            await self.stop.wait()
        finally:
            await runner.cleanup()

    @contextmanager
    def _counted(self) -> Generator[None]:
        self._present += 1
        self.peak = max(self.peak, self._present)
        self.idle.clear()
        if self._present >= self._expected:
            self.full.set()
            if self._answers:
                self._open.set()
        try:
            yield
        finally:
            self._present -= 1
            if self._present == 0:
                self.idle.set()


@contextmanager
def counting_server(expected: int, *, answers: bool = True) -> Generator[_Server]:
    """Yield a server that waits for `expected` concurrent requests, and then answers them, if `answers`."""
    server = _Server(expected, answers=answers)
    ready: Future[asyncio.AbstractEventLoop] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(ready)), name="http server")
    thread.start()
    loop = ready.result(PATIENCE_SECONDS)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server.stop.set)
        thread.join()


class _Numbers:
    """A source of numbers to request; its session is open from the first number to the last answer of a pass."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._session: ClientSession | None = None

    async def __aiter__(self) -> AsyncIterator[int]:
        self._unanswered = self._count
        self._answered = asyncio.Event()  # a pass may run in another loop than the one before
        async with ClientSession(connector=TCPConnector(limit=0)) as self._session:  # the client sets no limit
            for number in range(self._count):
                yield number
            await self._answered.wait()

    async def fetch(self, number: int) -> int:
        """Request a number from the server."""
        assert self._session is not None
        async with self._session.get(f"{self._url}/numbers/{number}") as response:
            answer = int(await response.text())
        self._unanswered -= 1
        if self._unanswered == 0:
            self._answered.set()
        return answer


class _Lines:
    """A source of the lines of an endless response."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aiter__(self) -> AsyncIterator[int]:
        async with ClientSession() as session, session.get(f"{self._url}/lines") as response:
            async for line in response.content:
                yield int(line)


@pytest.mark.parametrize("output_order", ["completion", "input"])
def test_a_stage_has_as_many_requests_as_its_concurrency(output_order: Literal["completion", "input"]) -> None:
    """With a concurrency of 100 the server gets 100 concurrent requests, never 101, and no answer of a pass is lost."""
    with counting_server(AT_ONCE) as server:
        numbers = _Numbers(server.url, NUM_REQUESTS)
        builder = PipelineBuilder().add_source(numbers)
        builder.pipe(numbers.fetch, concurrency=AT_ONCE, output_order=output_order)
        with builder.add_sink(AT_ONCE).build(num_threads=1).auto_stop() as pipeline:
            for _ in range(2 if output_order == "input" else 1):
                answers = list(pipeline)
                assert (answers if output_order == "input" else sorted(answers)) == list(range(NUM_REQUESTS))
        assert server.peak == AT_ONCE


def test_stopping_ends_open_requests() -> None:
    """`stop` returns while 100 requests are unanswered, and closes all of them."""
    with counting_server(AT_ONCE, answers=False) as server:
        numbers = _Numbers(server.url, NUM_REQUESTS)
        builder = PipelineBuilder().add_source(numbers).pipe(numbers.fetch, concurrency=AT_ONCE)
        pipeline = builder.add_sink(AT_ONCE).build(num_threads=1)
        pipeline.start()
        assert server.full.wait(PATIENCE_SECONDS)
        pipeline.stop()
        assert server.idle.wait(PATIENCE_SECONDS)
        assert server.peak == AT_ONCE


def test_leaving_a_pass_ends_a_response_that_streams() -> None:
    """A source reads an endless response as it is sent; leaving the `for` closes the connection."""
    with counting_server(1) as server:
        builder = PipelineBuilder().add_source(_Lines(server.url)).pipe(lambda number: number * 2)
        with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
            items = iter(pipeline)
            assert [next(items) for _ in range(500)] == list(range(0, 1000, 2))
        assert server.idle.wait(PATIENCE_SECONDS)

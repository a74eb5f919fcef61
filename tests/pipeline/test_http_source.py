"""Pipelines of coroutines read from a real HTTP server, with as many concurrent requests as allowed and never more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest

pytest.importorskip("aiohttp")  # installed only for some of the tests

from aiohttp import ClientSession, TCPConnector

from penstock.pipeline import PipelineBuilder
from tests.pipeline.http_server import PATIENCE_SECONDS, counting_server

AT_ONCE = 100
NUM_REQUESTS = 500


class Numbers:
    """A source of numbers to request; its session is open from the first number to the last answer."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._session: ClientSession | None = None
        self._unanswered = count
        self._answered = asyncio.Event()

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


class Lines:
    """A source of the lines of an endless response."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aiter__(self) -> AsyncIterator[int]:
        async with ClientSession() as session, session.get(f"{self._url}/lines") as response:
            async for line in response.content:
                yield int(line)


@pytest.mark.parametrize("output_order", ["completion", "input"])
def test_a_stage_has_as_many_requests_as_its_concurrency(output_order: Literal["completion", "input"]) -> None:
    """With a concurrency of 100 the server gets 100 concurrent requests, never 101, and no answer is lost."""
    with counting_server(AT_ONCE) as server:
        numbers = Numbers(server.url, NUM_REQUESTS)
        builder = PipelineBuilder().add_source(numbers)
        builder.pipe(numbers.fetch, concurrency=AT_ONCE, output_order=output_order)
        with builder.add_sink(AT_ONCE).build(num_threads=1).auto_stop() as pipeline:
            answers = list(pipeline)
        assert server.peak == AT_ONCE
    assert (answers if output_order == "input" else sorted(answers)) == list(range(NUM_REQUESTS))


def test_a_source_that_opens_a_session_in_each_pass() -> None:
    """A source that opens its session in each pass can be read several times."""
    with counting_server(2) as server:
        numbers = Numbers(server.url, 6)
        builder = PipelineBuilder().add_source(numbers)
        builder.pipe(numbers.fetch, concurrency=2, output_order="input").aggregate(2)
        with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
            for _ in range(3):
                assert list(pipeline) == [[0, 1], [2, 3], [4, 5]]
        assert server.peak == 2


def test_stopping_ends_open_requests() -> None:
    """`stop` returns while 100 requests are unanswered, and closes all of them."""
    with counting_server(AT_ONCE, answers=False) as server:
        numbers = Numbers(server.url, NUM_REQUESTS)
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
        builder = PipelineBuilder().add_source(Lines(server.url)).pipe(lambda number: number * 2)
        with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
            read: list[int] = []
            for number in pipeline:
                read.append(number)
                if len(read) == 1000:
                    break
        assert read == list(range(0, 2000, 2))
        assert server.idle.wait(PATIENCE_SECONDS)

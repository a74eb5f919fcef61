"""An HTTP server on a real socket, in a thread of its own, that counts its concurrent requests."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager

from aiohttp import web

from tests.promptness import PATIENCE_SECONDS as PATIENCE_SECONDS

LATENCY_SECONDS = 0.02


class CountingServer:
    """A server that counts its concurrent requests.

    It answers no request before `expected` requests are open at the same time, or a timeout, and from then on each
    request after a latency. So the number of concurrent requests depends on the client, not on the machine's speed.

    Args:
        expected: how many open requests make it full.
        answers: False for a server that never answers.

    Attributes:
        url: its URL.
        peak: the largest number of concurrent requests.
        full: set when `expected` requests are open.
        idle: set when no request is open.
    """

    def __init__(self, expected: int, *, answers: bool) -> None:
        self.url = ""
        self.peak = 0
        self.full = threading.Event()
        self.idle = threading.Event()
        self._expected = expected
        self._answers = answers
        self._present = 0
        self._open = asyncio.Event()
        self._stop = asyncio.Event()

    async def number(self, request: web.Request) -> web.Response:
        """Answer with the number in the path."""
        self._enter()
        try:
            try:
                await asyncio.wait_for(self._open.wait(), PATIENCE_SECONDS)
            except TimeoutError:
                self._open.set()
            await asyncio.sleep(LATENCY_SECONDS)
            return web.Response(text=request.match_info["number"])
        finally:
            self._leave()

    async def lines(self, request: web.Request) -> web.StreamResponse:
        """Send one number per line, without an end."""
        self._enter()
        try:
            response = web.StreamResponse()
            await response.prepare(request)
            line = 0
            while True:
                await response.write(f"{line}\n".encode())
                line += 1
        finally:
            self._leave()

    async def serve(self, ready: "Future[asyncio.AbstractEventLoop]") -> None:
        """Serve until `stop`."""
        application = web.Application()
        application.router.add_get("/numbers/{number}", self.number)
        application.router.add_get("/lines", self.lines)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set_result(asyncio.get_running_loop())
            await self._stop.wait()
        finally:
            await runner.cleanup()

    def stop(self) -> None:
        """Stop serving; called on the server's loop."""
        self._stop.set()

    def _enter(self) -> None:
        self._present += 1
        self.peak = max(self.peak, self._present)
        self.idle.clear()
        if self._present >= self._expected:
            self.full.set()
            if self._answers:
                self._open.set()

    def _leave(self) -> None:
        self._present -= 1
        if self._present == 0:
            self.idle.set()


@contextmanager
def counting_server(expected: int, *, answers: bool = True) -> Generator[CountingServer]:
    """Yield a server that waits for `expected` concurrent requests, and then answers them, if `answers`."""
    server = CountingServer(expected, answers=answers)
    ready: Future[asyncio.AbstractEventLoop] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(ready)), name="http server")
    thread.start()
    loop = ready.result(PATIENCE_SECONDS)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join()

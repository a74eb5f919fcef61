"""An HTTP server on a real socket, in a thread of its own, that counts the requests that it has at the same time."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager

from aiohttp import web

LATENCY_SECONDS = 0.02
PATIENCE_SECONDS = 20.0


class CountingServer:
    """What a server has seen.

    It answers nothing before `expected` requests are there together, or patience has run out, and from then on each
    request after its latency: how many there are at once is up to the client, and not to the machine's speed.

    Args:
        expected: how many requests make it full.
        answers: False for a server that never answers, however full.

    Attributes:
        url: where it listens.
        most: how many requests there were at once.
        full: set when `expected` are there.
        idle: set when there is no request.
    """

    def __init__(self, expected: int, *, answers: bool) -> None:
        self.url = ""
        self.most = 0
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
        """Send one number a line, without an end."""
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
        """End serving; to be called in the server's loop."""
        self._stop.set()

    def _enter(self) -> None:
        self._present += 1
        self.most = max(self.most, self._present)
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
    """Give a server that waits for `expected` requests at once, and then answers them, or not."""
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

"""The server of `penstock look --serve`: pages of steps for a browser on this machine, made when it requests them."""

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Final, cast
from urllib.parse import parse_qs, urlsplit

from penstock._caught import Caught
from penstock._graph import escaped
from penstock.observe import Look
from penstock.observe._page import whole_page

_HOST: Final = "127.0.0.1"
_DIGITS: Final = 18  # of a step; no training has more
_NAVIGATION: Final = (
    '<form><a href="?step={before}">◂</a> step <input name="step" type="number" min="0" value="{step}" size="9"> '
    '<button>show</button> <a href="?step={after}">▸</a></form>'
)


class LookServer(ThreadingHTTPServer):
    """Serves pages of steps, to this machine alone.

    Each connection has a thread, since browsers open some that they don't use. Pages are made one at a time.

    Args:
        look: returns what the model sees at a step.
        port: the port; 0 for any that is free.
        first: the step that is shown at first.
    """

    def __init__(self, look: Callable[[int], Look], port: int, first: int) -> None:
        self.look = look
        self.first = first
        self._one_at_a_time = threading.Lock()
        super().__init__((_HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"http://{_HOST}:{self.server_port}/"

    def page(self, step: int) -> str:
        """Return the page of a step; an error of the dataset is its content."""
        content = ""
        with self._one_at_a_time, Caught(Exception) as caught:
            content = self.look(step).html()
        if caught.error is not None:
            error = caught.taken()
            notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
            content = f"<pre>{escaped(f'{type(error).__name__}: {error}{notes}')}</pre>"
        navigation = _NAVIGATION.format(before=max(step - 1, 0), step=step, after=step + 1)
        return whole_page(f"step {step:,}", navigation + content)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page of a step."""

    timeout: ClassVar[float | None] = 60.0  # seconds that a connection may be idle

    def handle(self) -> None:
        """Answer the requests of a connection, until the browser closes it."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Answer a request; others than for the page, or by another name of this machine, are refused."""
        server = cast("LookServer", self.server)
        host = self.headers.get("Host", "")
        whole, path, query = _parts_of(self.path, host)
        text = parse_qs(query).get("step", [str(server.first)])[0]
        # A page of another site may have a name that leads here, and would read the answer.
        is_ours = {host, whole} <= {f"{name}:{server.server_port}" for name in (_HOST, "localhost")}
        if not is_ours or path != "/" or not (text.isdecimal() and len(text) <= _DIGITS):
            self.send_response(404)
            self.end_headers()
            return
        content = server.page(int(text)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *parts: object, **named: object) -> None:
        """Log no requests, and no connections that were idle too long."""


def _parts_of(target: str, host: str) -> tuple[str, str, str]:
    """Return the host, path and query of a request's target, which has a host if it is for a proxy."""
    with suppress(ValueError):  # of a malformed host
        url = urlsplit(target)
        return url.netloc or host, url.path, url.query
    return "", "", ""

"""Upload a received array by HTTP without a copy, download it again, and compare.

    python examples/byte_handles/upload.py

The array stands for a batch that came from a loader, a pipe or C++. `Bytes` holds its memory; the HTTP client sends
from there. A server in this script keeps what it gets and gives it back. With aiohttp installed the client is aiohttp,
else Python's own http.client.
"""

import asyncio
import http.client
import http.server
import threading
from urllib.parse import urlsplit

import numpy as np

from penstock.transport import Bytes

try:
    import aiohttp
except ModuleNotFoundError:
    aiohttp = None


class Storage(http.server.BaseHTTPRequestHandler):
    """Keeps the body of a PUT, and gives it to each GET."""

    kept: dict[str, Bytes] = {}  # noqa: RUF012 - one storage for all requests

    def do_PUT(self) -> None:
        """Read the body into memory of its own, and keep a handle over it."""
        body = bytearray(int(self.headers["Content-Length"]))
        self.rfile.readinto(memoryview(body))
        self.kept[self.path] = Bytes(body)
        self.answer(201, Bytes(b""))

    def do_GET(self) -> None:
        """Send what is kept, from where it is."""
        self.answer(200, self.kept[self.path])

    def answer(self, status: int, body: Bytes) -> None:
        """Send a response with this body."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


async def send_and_fetch(url: str, body: Bytes) -> Bytes:
    """Return what is downloaded after an upload, by aiohttp, which takes a handle wherever it takes bytes."""
    async with aiohttp.ClientSession() as session:
        async with session.put(url, data=body) as response:
            response.raise_for_status()
        async with session.get(url) as response:
            return Bytes(await response.read())


def send_and_fetch_plainly(url: str, body: Bytes) -> Bytes:
    """Return what is downloaded after an upload, by http.client."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    try:
        connection.request("PUT", parts.path, body=body)
        connection.getresponse().read()
        connection.request("GET", parts.path)
        return Bytes(connection.getresponse().read())
    finally:
        connection.close()


def main() -> None:
    """Serve, upload, download, compare."""
    images = np.arange(16 * 96 * 96 * 3, dtype=np.uint32).astype(np.uint8).reshape(16, 96, 96, 3)
    body = Bytes(images)  # the array's own memory, whatever its shape
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Storage) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/images"
            if aiohttp is None:
                print("aiohttp is not installed; http.client sends instead")
                fetched = send_and_fetch_plainly(url, body)
            else:
                fetched = asyncio.run(send_and_fetch(url, body))
        finally:
            server.shutdown()
            thread.join()
    restored = np.frombuffer(fetched, np.uint8).reshape(images.shape)  # without a copy too
    print(f"sent     {body}")
    print(f"fetched  {fetched}")
    print(
        f"equal: {fetched == body}; of the sent array's memory: {np.shares_memory(np.frombuffer(body, 'u1'), images)}"
    )
    print(f"restored: {restored.dtype} {restored.shape}")


if __name__ == "__main__":
    main()

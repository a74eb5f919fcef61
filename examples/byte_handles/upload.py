"""Uploads a received array by HTTP without a copy, downloads it again, and compares the two.

    python examples/byte_handles/upload.py

The array represents a batch from a loader, a pipe or C++. `Bytes` holds its memory, and the HTTP client sends straight
from there. A server in this script stores the upload and returns it. The client is aiohttp if it is installed,
otherwise Python's own http.client.
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
    """Stores the body of a PUT, and returns it to each GET."""

    kept: dict[str, Bytes] = {}  # noqa: RUF012 - one storage for all requests

    def do_PUT(self) -> None:
        """Read the body into new memory, and store a handle over it."""
        body = bytearray(int(self.headers["Content-Length"]))
        self.rfile.readinto(memoryview(body))
        self.kept[self.path] = Bytes(body)
        self.answer(201, Bytes(b""))

    def do_GET(self) -> None:
        """Send the stored body from its own memory."""
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
    """Return the download after an upload, by aiohttp, which accepts a handle wherever it accepts bytes."""
    async with aiohttp.ClientSession() as session:
        async with session.put(url, data=body) as response:
            response.raise_for_status()
        async with session.get(url) as response:
            return Bytes(await response.read())


def send_and_fetch_plainly(url: str, body: Bytes) -> Bytes:
    """Return the download after an upload, by http.client."""
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
    body = Bytes(images)  # the array's own memory, for any shape
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Storage) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/images"
            if aiohttp is None:
                print("aiohttp is not installed; http.client uploads instead")
                fetched = send_and_fetch_plainly(url, body)
            else:
                fetched = asyncio.run(send_and_fetch(url, body))
        finally:
            server.shutdown()
            thread.join()
    restored = np.frombuffer(fetched, np.uint8).reshape(images.shape)  # also without a copy
    print(f"sent     {body}")
    print(f"fetched  {fetched}")
    print(
        f"equal: {fetched == body}; of the sent array's memory: {np.shares_memory(np.frombuffer(body, 'u1'), images)}"
    )
    print(f"restored: {restored.dtype} {restored.shape}")


if __name__ == "__main__":
    main()

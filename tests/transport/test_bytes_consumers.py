"""Whatever takes bytes takes a handle, without a conversion: sockets, HTTP, parsers, decompressors, files."""

import asyncio
import hashlib
import io
import json
import lzma
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from penstock.transport import Bytes


@pytest.fixture(params=[bytes, bytearray], ids=["read-only", "writable"])
def wrap(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    """Return a function that holds bytes by a slice of a handle, named `bytes` as users with strict types have to."""
    return lambda data: cast("bytes", Bytes(request.param(b"__" + data + b"__"))[2:-2])


def test_the_standard_library(wrap: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """JSON in each of its encodings, other parsers, decompressors, hashes, files and sockets take a handle."""
    value = {"name": "péage", "lanes": [1, 2]}
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le"):
        assert json.loads(wrap(json.dumps(value, ensure_ascii=False).encode(encoding))) == value
    text = b"a lot of text " * 1000
    assert zlib.decompress(wrap(zlib.compress(text))) == zlib.decompress(zlib.compress(wrap(text))) == text
    assert lzma.decompress(wrap(lzma.compress(text))) == text
    assert hashlib.sha256(wrap(text)).digest() == hashlib.sha256(text).digest()
    assert struct.unpack("<3H", wrap(b"\1\0\2\0\3\0")) == (1, 2, 3)
    assert (int.from_bytes(wrap(b"\1\2"), "big"), float(wrap(b"1.5"))) == (258, 1.5)
    path = tmp_path / "data"
    with path.open("wb") as buffered:
        assert buffered.write(wrap(b"one")) == 3
        buffered.writelines([wrap(b"two"), wrap(b"three")])
    assert path.read_bytes() == b"onetwothree"
    joined = bytearray(wrap(b"abc"))
    joined += wrap(b"d")
    assert joined == b"abcd"
    left, right = socket.socketpair()
    with left, right:
        assert left.sendmsg([wrap(b"three"), b"four"]) == 9
        received = bytearray(9)
        assert right.recv_into(Bytes(received)) == 9
        assert received == b"threefour"


def test_http_of_aiohttp(wrap: Callable[[bytes], bytes]) -> None:
    """A handle is the body of a client's request, of a server's response, and a part of a stream, of its length."""
    pytest.importorskip("aiohttp")
    from aiohttp import ClientSession, web  # noqa: PLC0415 - installed only for some of the tests

    async def echo(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path == "/stream":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(wrap(body))
            await response.write_eof(wrap(b"end"))
            return response
        return web.Response(body=wrap(body))

    async def exchange() -> None:
        application = web.Application(client_max_size=2**24)
        for path in ("/", "/stream"):
            application.router.add_post(path, echo)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with ClientSession() as session:
                for data in (b"", b"x", b"x" * 1_000_000):  # above 2**20 aiohttp warns of every body
                    async with session.post(f"{url}/", data=wrap(data)) as response:
                        assert await response.read() == data
                        assert response.content_length == len(data)
                    async with session.post(f"{url}/stream", data=wrap(data)) as response:
                        assert await response.read() == data + b"end"
        finally:
            await runner.cleanup()

    asyncio.run(exchange())


def test_image_decoders(wrap: Callable[[bytes], bytes]) -> None:
    """Pillow and simplejpeg decode a JPEG that a handle holds, to the same picture."""
    image = pytest.importorskip("PIL.Image")
    simplejpeg = pytest.importorskip("simplejpeg")
    rows, columns = np.indices((32, 48))
    picture = np.stack([rows * 8, columns * 5, rows + columns], axis=-1).astype(np.uint8)
    written = io.BytesIO()
    image.fromarray(picture).save(written, "JPEG", quality=95)
    handle = wrap(written.getvalue())
    assert simplejpeg.is_jpeg(handle)
    assert simplejpeg.decode_jpeg_header(handle)[:2] == (32, 48)
    assert np.array_equal(simplejpeg.decode_jpeg(handle), simplejpeg.decode_jpeg(written.getvalue()))
    assert np.array_equal(image.open(io.BytesIO(handle)), image.open(written))

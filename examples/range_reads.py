"""Reads ranges of remote files with many concurrent requests, and decodes them on threads: a pipeline over HTTP.

    python examples/range_reads.py

The archives are on a server of this script's own, which takes 20 ms to answer. Each holds compressed images, one after
the other, and a table has the end of each. A request reads the range of 16 neighbouring images. The response is written
once, into memory of the range's size. Handles of `penstock.transport.Bytes` then divide it into images without a copy,
and decompression reads them in place. Needed: pip install penstock aiohttp
"""

import asyncio
import tempfile
import threading
import zlib
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler

from penstock.pipeline import PipelineBuilder
from penstock.transport import Bytes

SHAPE = (32, 32, 3)
NUM_IMAGES = 512  # in each archive
TOGETHER = 16  # neighbouring images of one request
AT_ONCE = 32  # requests


@dataclass(frozen=True)
class Range:
    """Neighbouring images of an archive: the start of the first one, and the end of each."""

    archive: str
    start: int
    ends: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The end of the last one."""
        return self.ends[-1]


class Archives:
    """The ranges to read, as a source of a pipeline, and the stage that reads them.

    The HTTP session belongs to a pass over the source: it is open until the last range was read, or the pass stops.
    """

    def __init__(self, url: str, ranges: list[Range]) -> None:
        self.url = url
        self.ranges = ranges

    async def __aiter__(self) -> AsyncIterator[Range]:
        """Yield the ranges; then wait for the outstanding requests."""
        self.requests = asyncio.Queue[Range]()  # of the ranges that are not read yet
        connector = aiohttp.TCPConnector(limit=AT_ONCE)
        async with aiohttp.ClientSession(connector=connector) as self.session:
            for wanted in self.ranges:
                self.requests.put_nowait(wanted)
                yield wanted
            await self.requests.join()

    async def read(self, wanted: Range) -> tuple[Range, Bytes]:
        """Return a range with its bytes."""
        try:
            return wanted, await self.fetch(wanted)
        finally:  # also if it fails
            self.requests.task_done()

    async def fetch(self, wanted: Range) -> Bytes:
        """Return a range's bytes, written from the socket straight into memory of the range's size.

        Raises:
            ValueError: the server sent no range, or another number of bytes.
        """
        body = memoryview(bytearray(wanted.stop - wanted.start))
        headers = {"Range": f"bytes={wanted.start}-{wanted.stop - 1}"}
        async with self.session.get(f"{self.url}/{wanted.archive}", headers=headers) as response:
            response.raise_for_status()
            if response.status != 206:
                raise ValueError(f"a server must answer a range request with status 206; got {response.status}")
            end = 0
            async for piece in response.content.iter_any():
                start, end = end, end + len(piece)
                body[start:end] = piece
        if end != len(body):
            raise ValueError(f"{headers['Range']} of {wanted.archive} has {len(body)} bytes; the server sent {end}")
        return Bytes(body)


def cut(read: tuple[Range, Bytes]) -> Iterator[Bytes]:
    """Yield handles of the images in a range, without copies."""
    wanted, body = read
    start = wanted.start
    for end in wanted.ends:
        yield body[start - wanted.start : end - wanted.start]
        start = end


def decode(compressed: Bytes) -> np.ndarray:
    """Return an image. Decompression releases the GIL."""
    return np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(SHAPE)


def write_archives(folder: Path) -> tuple[np.ndarray, list[Range]]:
    """Return the images of two archives, which it writes, and the ranges to read."""
    rows, columns, channels = np.indices(SHAPE)
    pictures = [(rows * number + columns * (channels + 1)) % 251 for number in range(2 * NUM_IMAGES)]
    images = np.stack(pictures).astype(np.uint8)
    ranges: list[Range] = []
    for first in (0, NUM_IMAGES):
        records = [zlib.compress(image.tobytes()) for image in images[first : first + NUM_IMAGES]]
        ends = np.cumsum([len(record) for record in records]).tolist()
        (folder / f"{first}.archive").write_bytes(b"".join(records))
        starts = [0, *ends]
        for at in range(0, NUM_IMAGES, TOGETHER):
            ranges += [Range(f"{first}.archive", starts[at], tuple(ends[at : at + TOGETHER]))]
    return images, ranges


async def serve(folder: Path, address: "Future[str]", stopped: "Future[None]") -> None:
    """Serve the folder's files, each answer 20 ms late, until stopped."""

    @web.middleware
    async def late(request: web.Request, handler: Handler) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return await handler(request)

    application = web.Application(middlewares=[late])
    application.router.add_static("/", folder)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.wrap_future(stopped)
    finally:
        await runner.cleanup()


@contextmanager
def server_of(folder: Path) -> Generator[str]:
    """Yield the address of a server that runs in a thread of its own."""
    address: Future[str] = Future()
    stopped: Future[None] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(serve(folder, address, stopped)))
    thread.start()
    try:
        yield address.result(timeout=10)
    finally:
        stopped.set_result(None)
        thread.join()


def main() -> None:
    """Read, decode and stack all images, and compare them with the written ones."""
    with tempfile.TemporaryDirectory() as folder, server_of(Path(folder)) as url:
        images, ranges = write_archives(Path(folder))
        archives = Archives(url, ranges)
        pipeline = (
            PipelineBuilder()
            .add_source(archives)
            .pipe(archives.read, concurrency=AT_ONCE, output_order="input")
            .pipe(cut)
            .pipe(decode, concurrency=2, output_order="input")
            .aggregate(128)
            .pipe(np.stack)
            .add_sink()
            .build(num_threads=2)
        )
        with pipeline.auto_stop():
            batches = list(pipeline)
    print(f"ranges:  {len(ranges)} of {TOGETHER} images, {sum(each.stop - each.start for each in ranges):,} bytes")
    print(f"batches: {len(batches)} of {batches[0].dtype} {batches[0].shape}")
    print(f"equal:   {np.array_equal(np.concatenate(batches), images)}")


if __name__ == "__main__":
    main()

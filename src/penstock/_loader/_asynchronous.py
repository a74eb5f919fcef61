"""The iterator for `async for`, which doesn't block the event loop while it waits for a batch.

The loader imports this module at the first `async for`: asyncio takes longer to load than the rest of Penstock.
"""

import asyncio
from typing import Generic, Self

from penstock._dataset import T_co
from penstock._loader._iterator import LoaderIterator


class AsyncLoaderIterator(Generic[T_co]):
    """The batches of one epoch, for `async for`. A cancelled wait leaves it as if no batch had been requested."""

    def __init__(self, iterator: LoaderIterator[T_co]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        while (descriptor := self._iterator.may_wait) is not None:
            await _readable(descriptor)
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor is readable."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(descriptor, _resolve, readable)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


def _resolve(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)

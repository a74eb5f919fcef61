"""Where the flow of items parts: a function chooses the path of each item, as the operation of a stage.

The stage is one of a plain or of an async function like any other: plain routers run on the threads, applied to
chunks and fused with the functions before them while they are cheap, and async ones are awaited. Its results are pairs
of a path's number and the item, which a `Fork` puts into the paths.
"""

from collections.abc import Awaitable, Callable

from penstock.errors import UsageError
from penstock.pipeline._failures import FatalError, shortened

Choice = tuple[int, object]
"""The number of a path, and the item that takes it."""


class Router:
    """A plain function that chooses among so many paths."""

    def __init__(self, router: Callable[[object], object], paths: int) -> None:
        self._router = router
        self._paths = paths

    def __call__(self, item: object) -> Choice:
        """Return the path that an item takes."""
        return _choice(self._router(item), item, self._paths)


class AsyncRouter:
    """An async function that chooses among so many paths."""

    def __init__(self, router: Callable[[object], Awaitable[object]], paths: int) -> None:
        self._router = router
        self._paths = paths

    async def __call__(self, item: object) -> Choice:
        """Return the path that an item takes."""
        return _choice(await self._router(item), item, self._paths)


def _choice(number: object, item: object, paths: int) -> Choice:
    if isinstance(number, int) and 0 <= number < paths:
        return number, item
    raise FatalError from UsageError(
        f"a router returns the number of a path, an int from 0 to {paths - 1}; got {number!r:.200} for "
        f"{shortened(item)}. Return such a number, or add a path"
    )

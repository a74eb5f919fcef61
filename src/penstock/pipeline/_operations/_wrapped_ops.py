"""Wrappers around a user's function: routers, and functions whose None results are skipped.

A router is the op of an ordinary stage: a plain router runs on the threads, is applied to chunks, and is fused with
cheap functions before it; an async router is awaited. Its results are pairs of a path's number and the item, which a
`PathSwitch` puts into the paths.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing

from penstock.errors import UsageError
from penstock.pipeline._failures import FatalError, short_repr
from penstock.pipeline._items import SKIP
from penstock.pipeline._ops import Item, Kind

Choice = tuple[int, object]
"""The number of a path, and the item that takes it."""


class Router:
    """A plain function that chooses one of `paths` paths for each item."""

    def __init__(self, router: Callable[[object], object], paths: int) -> None:
        self._router = router
        self._paths = paths

    def __call__(self, item: object) -> Choice:
        """Return the path of an item."""
        return _checked(self._router(item), item, self._paths)


class AsyncRouter:
    """An async function that chooses one of `paths` paths for each item."""

    def __init__(self, router: Callable[[object], Awaitable[object]], paths: int) -> None:
        self._router = router
        self._paths = paths

    async def __call__(self, item: object) -> Choice:
        """Return the path of an item."""
        return _checked(await self._router(item), item, self._paths)


def _checked(number: object, item: object, paths: int) -> Choice:
    if isinstance(number, int) and 0 <= number < paths:
        return number, item
    raise FatalError from UsageError(
        f"a router returns the number of a path, an int from 0 to {paths - 1}; got {number!r:.200} for "
        f"{short_repr(item)}. Return such a number, or add a path"
    )


def skipping_none(op: Callable[[Item], Item], kind: Kind) -> Callable[[Item], Item]:
    """Return a function of the same kind, with SKIP in place of each None result; it can be pickled if `op` can."""
    match kind:
        case "sync" | "lookup":
            return _Function(op)
        case "async":
            return _AsyncFunction(op)
        case "generator":
            return _Generator(op)
        case "async generator":
            return _AsyncGenerator(op)


class _Function:
    def __init__(self, op: Callable[[object], object]) -> None:
        self._op = op

    def __call__(self, item: object) -> object:
        value = self._op(item)
        return SKIP if value is None else value


class _AsyncFunction:
    def __init__(self, op: Callable[[object], Awaitable[object]]) -> None:
        self._op = op

    async def __call__(self, item: object) -> object:
        value = await self._op(item)
        return SKIP if value is None else value


class _Generator:
    def __init__(self, op: Callable[[object], Generator[object]]) -> None:
        self._op = op

    def __call__(self, item: object) -> Generator[object]:
        with closing(self._op(item)) as values:
            for value in values:
                yield SKIP if value is None else value


class _AsyncGenerator:
    def __init__(self, op: Callable[[object], AsyncGenerator[object]]) -> None:
        self._op = op

    async def __call__(self, item: object) -> AsyncGenerator[object]:
        async with aclosing(self._op(item)) as values:
            async for value in values:
                yield SKIP if value is None else value

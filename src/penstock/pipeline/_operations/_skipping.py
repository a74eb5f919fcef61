"""Functions of each kind whose results that are None are SKIP, for stages with `skip_none=True`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing

from penstock.pipeline._items import SKIP
from penstock.pipeline._ops import Item, Kind


def skipping_none(op: Callable[[Item], Item], kind: Kind) -> Callable[[Item], Item]:
    """Return a function of the same kind that gives SKIP where this one gives None; it pickles if this one does."""
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

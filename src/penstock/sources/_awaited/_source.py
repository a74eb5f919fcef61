"""The adapter of an async source to plain code: its coroutines run on the source's own loop.

Plain code reads it like any other source. Code that reads ahead awaits `read_async`.
"""

import inspect
from functools import partial
from typing import TYPE_CHECKING, Protocol, SupportsIndex, TypeGuard

import numpy as np

from penstock.errors import UsageError
from penstock.sources._source import Keys, Record, as_key, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sources._awaited._loop import Call, SourceLoop, Work


class AsyncReader(Protocol):
    """The methods of an async source."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    async def read(self, keys: Keys, /) -> object:
        """Return one record for each key, in order."""
        ...


def is_async(value: object) -> TypeGuard[AsyncReader]:
    """Return whether an object has `async def read(self, keys)`.

    Args:
        value: any object.

    Returns:
        True if its `read` is a coroutine function, and it is no class.
    """
    return not isinstance(value, type) and inspect.iscoroutinefunction(getattr(value, "read", None))


class AwaitedSource:
    """A plain source over an async one. Copies in other processes and in forked children get their own event loop.

    Attributes:
        source: the user's source.
        keys_per_read: the largest number of keys of a call of its `read` when records are read ahead.
        describe_key: the `describe_key` of the user's source, if it has one.
    """

    def __init__(self, source: AsyncReader) -> None:
        """Wrap a source.

        Args:
            source: an object for which `is_async` is true.

        Raises:
            UsageError: it has no length, or its `keys_per_read` is invalid.
        """
        if not hasattr(source, "__len__"):
            raise UsageError(
                f"an async source must have __len__ besides `async def read(self, keys)`; got {name_of(source)}, a "
                f"{type(source).__name__}. Give it a __len__ that returns the number of its records."
            )
        keys_per_read: object = getattr(source, "keys_per_read", 1)
        if not isinstance(keys_per_read, int) or keys_per_read < 1:
            raise UsageError(
                f"keys_per_read of a source must be an int of at least 1; got {keys_per_read!r} from "
                f"{name_of(source)}. Set the number of keys for one call of its read, or omit it for 1."
            )
        self.source = source
        self.keys_per_read: int = keys_per_read
        describe_key: Callable[[int], str] | None = getattr(source, "describe_key", None)
        if callable(describe_key):
            self.describe_key = describe_key

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SupportsIndex) -> Record:
        records = self.read(np.array([as_key(key, len(self))], np.int64))
        return records[0]

    def read(self, keys: Keys) -> Record:
        """Return the result of the source's `read`; wait for it.

        Args:
            keys: int64, one axis.

        Returns:
            The result, unchecked, as of any source.

        Raises:
            UsageError: the source's own `read` calls this, and would wait for itself.
        """
        return self._loop().run(partial(self.source.read, keys))

    async def read_async(self, keys: Keys) -> object:
        """Return the result of the source's `read`, from a coroutine of any loop, without blocking that loop.

        Args:
            keys: as for `read`.

        Returns:
            As for `read`.
        """
        return await self._loop().run_elsewhere(partial(self.source.read, keys))

    def start(self, work: "Work") -> "Call":
        """Start the coroutine of `work` on the source's loop; return at once.

        Args:
            work: makes the coroutine, on the loop.

        Returns:
            The call, with its outcome and its `cancel`.
        """
        return self._loop().start(work)

    def fingerprint(self) -> object:
        """Return the source's own fingerprint, or its type and length."""
        own: Callable[[], object] | None = getattr(self.source, "fingerprint", None)
        if callable(own):
            return own()
        kind = type(self.source)
        return f"{kind.__module__}.{kind.__qualname__}-{len(self)}"

    def __repr__(self) -> str:
        return repr(self.source)

    def __reduce__(self) -> tuple[object, ...]:
        return AwaitedSource, (self.source,)

    def _loop(self) -> "SourceLoop":
        from penstock.sources._awaited._loop import loop_of  # noqa: PLC0415 - asyncio is slow to import

        return loop_of(self.source, self)

"""A source whose `read` is async, as one that any plain code can read: the coroutine is run to its end elsewhere.

Everything that reads a source goes on as with any other. What reads ahead finds the async function by `read_async`.
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
    """What an async source has."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    async def read(self, keys: Keys, /) -> object:
        """Return one record for each key, in order."""
        ...


def is_async(value: object) -> TypeGuard[AsyncReader]:
    """Return whether something is read by `async def read(self, keys)`.

    Args:
        value: anything, also what is no source.

    Returns:
        True where its `read` is a coroutine function, and it is no class.
    """
    return not isinstance(value, type) and inspect.iscoroutinefunction(getattr(value, "read", None))


class AwaitedSource:
    """A source over an async one. Copies in other processes, and forks, get an event loop of their own.

    Attributes:
        source: the user's.
        keys_per_read: how many keys a call of its `read` gets at most, where records are read ahead.
        describe_key: the user's source's own, where it has one.
    """

    def __init__(self, source: AsyncReader) -> None:
        """Wrap a source.

        Args:
            source: what `is_async`.

        Raises:
            UsageError: it has no length, or its `keys_per_read` is no number of keys.
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
                f"{name_of(source)}. Say how many keys one call of its read should get, or leave it out for 1."
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
        """Return what the source's `read` returns, waiting for it here.

        Args:
            keys: int64, one axis.

        Returns:
            Whatever that is: who reads checks it, as of any source.

        Raises:
            UsageError: called by the source's own `read`, which would wait for itself.
        """
        return self._loop().run(partial(self.source.read, keys))

    async def read_async(self, keys: Keys) -> object:
        """Return what the source's `read` returns; the loop that awaits it does other things meanwhile.

        Args:
            keys: as for `read`.

        Returns:
            As `read`.
        """
        return await self._loop().run_elsewhere(partial(self.source.read, keys))

    def start(self, work: "Work") -> "Call":
        """Run the coroutine that `work` makes on the source's loop; return at once.

        Args:
            work: makes the coroutine, on the loop.

        Returns:
            The means to cancel the coroutine, and its outcome.
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

"""Keeping what user code raises, of any kind, for whoever will tell of it elsewhere."""

from types import TracebackType
from typing import Self


class Caught:
    """Keeps what its block raises: user code runs in it, and another will tell what it raised.

    Args:
        kind: what is kept, by default all. Where an error is told in other words, or leaves only another way to go, it
            must be Exception: in the program's main thread Ctrl-C is raised anywhere, and would be lost.
    """

    __slots__ = ("_kind", "error")

    def __init__(self, kind: type[BaseException] = BaseException) -> None:
        self.error: BaseException | None = None
        self._kind = kind

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if not isinstance(error, self._kind):
            return False
        self.error = error
        return True

    def taken(self) -> BaseException:
        """Return what was raised, and forget it: its traceback would hold whoever raises it again, and holds this."""
        assert self.error is not None
        error, self.error = self.error, None
        return error

"""Keeping what user code raises, of any kind, for whoever will tell of it elsewhere."""

from types import TracebackType
from typing import Self


class Caught:
    """Keeps what its block raises, of any kind: user code runs in it, and another will tell what it raised."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.error = error
        return error is not None

    def taken(self) -> BaseException:
        """Return what was raised, and forget it: its traceback would hold whoever raises it again, and holds this."""
        assert self.error is not None
        error, self.error = self.error, None
        return error

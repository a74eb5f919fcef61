"""Keeping what user code raises, of any kind, for whoever will tell of it elsewhere."""

import threading
from types import TracebackType
from typing import Self


class Caught:
    """Keeps what its block raises: user code runs in it, and another will tell what it raised.

    Args:
        kind: what is kept, by default all. Where an error is told in other words, or leaves only another way to go,
            Ctrl-C would be lost, which is raised anywhere in the program's main thread: there it must be Exception; or,
            where threads do the same and mustn't end, all, with `pass_interrupt` after the block.
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

    def pass_interrupt(self) -> None:
        """Raise it if it may be Ctrl-C, which only the main thread gets: told in other words, that would be lost."""
        if isinstance(self.error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise self.taken()

    def taken(self) -> BaseException:
        """Return what was raised, and forget it: its traceback would hold whoever raises it again, and holds this."""
        assert self.error is not None
        error, self.error = self.error, None
        return error

"""The files that sources keep open for later reads, within one limit for all sources of a process.

Problem: a source of hundreds of shards opens each at its first read, and a mixture has dozens of such sources. A limit
for each source would let them have more descriptors than the process may, and then any part of the program fails.
Solution: before a source opens a file, the files that all of them keep are compared with the limit. If that is reached,
each source lets go of the older half of its own. If the process has no descriptor left, they let go of all.

The files are counted when as many were opened as the limit had room for at the last count, since a program may have
thousands of sources.

Rejected: to let go of the file that was used least recently. Each read would have to note its file, which takes as long
as the read of a short record.

Guarantees:
  - A file that is let go is closed when the last read of it has ended, never during one.
  - The sources keep at most `MAX_OPEN` files, and at most half of the descriptors that the process may have; other
    threads, which open files at the same moment, may add one each.
  - Any thread may call any method. Two threads may open one file at once: the file of one is kept.
"""

import errno
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from penstock._os import Reference

resource: Any = importlib.import_module("resource") if sys.platform != "win32" else None

T = TypeVar("T")
MAX_OPEN: Final = 512  # so that the program's other descriptors stay below 1024, as `select` needs
_NO_DESCRIPTOR: Final = frozenset((errno.EMFILE, errno.ENFILE))


class KeptOpen(Generic[T]):
    """The open files of a source, by their numbers.

    Args:
        users: what else refers to the files, by their numbers; entries go with their files.
        most: the most files of this source.
    """

    def __init__(self, users: dict[int, Any] | None = None, most: int = MAX_OPEN) -> None:
        self._files: dict[int, T] = {}  # the one that was opened first is the first
        self._users = {} if users is None else users
        self._most = most
        _all.add(Reference(self, _all.discard))

    def __len__(self) -> int:
        return len(self._files)

    def get(self, number: int) -> T | None:
        """Return a file that is open."""
        return self._files.get(number)

    def opened(self, number: int, open_file: Callable[[int], T]) -> T:
        """Return a file that is open, or open it.

        Args:
            number: the file's number.
            open_file: opens it.

        Raises:
            OSError: it can't be opened.
        """
        known = self._files.get(number)
        if known is not None:
            return known
        if len(self._files) >= self._most:
            self.let_go(len(self._files) - self._most + 1)
        _make_room()
        try:
            found = open_file(number)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            for kept in _living():
                kept.clear()
            found = open_file(number)
        return self._files.setdefault(number, found)

    def let_go(self, count: int) -> None:
        """Let go of the files that were opened first."""
        for number in list(self._files)[:count]:
            self._files.pop(number, None)  # before the user's entry, so that a thread that makes one now sees it gone
            self._users.pop(number, None)

    def clear(self) -> None:
        """Let go of all files."""
        self._files = {}  # before the users' entries, as above
        self._users.clear()


_all: Final[set[Reference[KeptOpen[Any]]]] = set()
"""Those of all sources of this process."""
_opened: Final = itertools.count()
_count_at: Final = [0, 0]  # the number of the opened file before which those that are kept are counted; at what limit


def _living() -> list[KeptOpen[Any]]:
    # `list` is one call of C code: another thread may make a source meanwhile.
    return [kept for reference in list(_all) if (kept := reference()) is not None]


def _make_room() -> None:
    number, limit = next(_opened), _limit()
    if number < _count_at[0] and limit == _count_at[1]:
        return
    living = _living()
    if _sum(living) >= limit:
        for kept in living:
            kept.let_go((len(kept) + 1) // 2)
    _count_at[:] = number + max(limit - _sum(living), 1), limit


def _sum(living: Iterable[KeptOpen[Any]]) -> int:
    return sum(map(len, living))


def _limit() -> int:
    """Return how many files the sources may keep open."""
    if resource is None:
        return MAX_OPEN
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN if limit == resource.RLIM_INFINITY else min(MAX_OPEN, limit // 2)

"""The files that sources keep open for later reads, within one limit for all sources of a process.

Problem: a source of hundreds of shards opens each at its first read, and a mixture has dozens of such sources. A limit
for each source would let them have more descriptors than the process may, and then any part of the program fails.
Solution: before a source opens a file, it compares what all of them keep with the limit. If that is reached, or if the
process has no descriptor left, all let go of their files, and open those again that they need.

Rejected: to close only the file that was used last. Each read would have to note its file, which takes as long as the
read of a short record.

Guarantees:
  - A file that is let go is closed when the last read of it has ended, never during one.
  - The sources keep at most `MAX_OPEN` files, and at most half of the descriptors that the process may have; other
    threads, which open files at the same moment, may add one each.
  - Any thread may call any method. Two threads may open one file at once: the file of one is kept.
"""

import contextlib
import errno
import importlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from penstock._os import Reference

resource: Any = importlib.import_module("resource") if sys.platform != "win32" else None

T = TypeVar("T")
MAX_OPEN: Final = 4096
_NO_DESCRIPTOR: Final = frozenset((errno.EMFILE, errno.ENFILE))


class KeptOpen(Generic[T]):
    """The open files of a source, by their numbers.

    Args:
        let_go: drops what else the source has of its open files.
        most: the most files of this source; the one that was opened first is let go for another one.
    """

    def __init__(self, let_go: Callable[[], object] = lambda: None, most: int = MAX_OPEN) -> None:
        self._files: OrderedDict[int, T] = OrderedDict()
        self._let_go = let_go
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
        self._make_room()
        try:
            found = open_file(number)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            _clear(_living())
            found = open_file(number)
        return self._files.setdefault(number, found)

    def clear(self) -> None:
        """Let go of all files."""
        self._let_go()
        self._files.clear()

    def _make_room(self) -> None:
        if len(self._files) >= self._most:
            with contextlib.suppress(KeyError):  # another thread has let go of all
                self._files.popitem(last=False)
        elif sum(map(len, living := _living())) >= _limit():
            _clear(living)


_all: Final[set[Reference[KeptOpen[Any]]]] = set()
"""Those of all sources of this process."""


def _living() -> list[KeptOpen[Any]]:
    # `list` is one call of C code: another thread may make a source meanwhile.
    return [kept for reference in list(_all) if (kept := reference()) is not None]


def _clear(living: Iterable[KeptOpen[Any]]) -> None:
    for kept in living:
        kept.clear()


def _limit() -> int:
    """Return how many files the sources may keep open."""
    if resource is None:
        return MAX_OPEN
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN if limit == resource.RLIM_INFINITY else min(MAX_OPEN, limit // 2)

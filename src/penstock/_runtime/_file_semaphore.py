"""Turns that processes take at something, so many at once."""

import fcntl
from contextlib import suppress

from penstock._memory import Region


class FileSemaphore:
    """Lets so many processes at once do something. A process that dies loses its turn, by the system's doing."""

    def __init__(self, region: Region, count: int, number: int) -> None:
        self._region = region  # whose file nothing else locks
        self._descriptor = region.descriptor
        self._turns = [(number + offset) % count for offset in range(count)]
        self._turn = 0

    def __enter__(self) -> None:
        for turn in self._turns:
            self._turn = turn
            with suppress(BlockingIOError, PermissionError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, turn)
                return
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._turn)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._turn)

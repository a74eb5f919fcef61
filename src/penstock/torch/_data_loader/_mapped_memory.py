"""Memory that maps a file, as its place in the file, where another process maps it again.

The problem: a dataset over `np.memmap` or `torch.from_file` is often larger than the machine's memory. Forks of a
program have its maps. Other processes would get the bytes: each start of workers would read and copy the whole file.

The solution: the kernel lists the maps of a process, with the file, the place in it and the kind of each. So any memory
is found in that list by its address, whichever library has mapped it, also a slice of it or a tensor over it.

A file without a name, such as that of `multiprocessing.RawArray`, is opened by the program's descriptor, if that is
still open. So workers share an array over it, as forks do: programs let workers fill such an array, and read it later.

Rejected: to ask `np.memmap` for its file, since its slices, tensors over it, and the maps of other libraries don't know
it, and since another file may have taken the name.

Not found, so that its bytes are sent: memory of a file that was deleted, replaced or shortened and has no descriptor,
or that can't be opened again; memory without any file (memfd), such as that of delivered batches, which may get other
contents; and memory that was mapped copy-on-write and then written to, since its file lacks these changes.
"""

import mmap
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock.errors import SourceError

Access: TypeAlias = Literal["r", "r+", "c"]
_MAP: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (.{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)\n")
_CHANGED: Final = ("Anonymous:", "Swap:", "Private_Hugetlb:")  # of a private map: the pages that it has changed
_ACCESS: Final = {"r": mmap.ACCESS_READ, "r+": mmap.ACCESS_WRITE, "c": mmap.ACCESS_COPY}


class _Map(NamedTuple):
    """A map of this process.

    Attributes:
        start: its first address.
        stop: the address after its last.
        kind: the permissions, and "s" for shared or "p" for private.
        offset: the place of its first byte in the file.
        file: the device and the inode of the file.
        path: the file's, which begins with a slash; another text, or none, for memory without a file.
    """

    start: int
    stop: int
    kind: str
    offset: int
    file: tuple[int, int]
    path: str

    @property
    def has_file(self) -> bool:
        """Whether a file is mapped."""
        return self.path.startswith("/") and not self.path.startswith("/memfd:")


@frozen
class MappedFile:
    """A part of a file that the program has mapped.

    Attributes:
        path: the file, absolute; or a descriptor of the program.
        inode: the file's, since another one may take its name.
        number: the map in the program. Memory of one map there is memory of one map here.
        offset: the place of the map's first byte in the file.
        nbytes: the size of the map.
        access: "r" for read-only, "r+" if writes go to the file, "c" if they stay in the process.
    """

    path: str
    inode: int
    number: int
    offset: int
    nbytes: int
    access: Access

    def open(self) -> NDArray[np.uint8]:
        """Return the bytes of the map; it is mapped once in this process.

        Raises:
            OSError: the file can't be opened or mapped.
            SourceError: another file has the name now, or it is shorter.
        """
        known = _opened.get(self)
        if known is None:
            known = _opened[self] = self._mapped()
        return known

    def _mapped(self) -> NDArray[np.uint8]:
        descriptor = os.open(self.path, (os.O_RDWR if self.access == "r+" else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_ino != self.inode or found.st_size < self.offset + self.nbytes:
                raise SourceError(
                    f"{self.path!r} isn't the file that the program has mapped, or is shorter now. Workers map it "
                    "again when they start, so don't replace it while a loader uses it"
                )
            memory = mmap.mmap(descriptor, self.nbytes, access=_ACCESS[self.access], offset=self.offset)
        finally:
            os.close(descriptor)
        return np.frombuffer(memory, np.uint8)


class MappedMemory(NamedTuple):
    """Memory in a map.

    Attributes:
        file: the map.
        begin: the place of the memory's first byte in it.
    """

    file: MappedFile
    begin: int


_opened: Final[WeakValueDictionary[Any, NDArray[np.uint8]]] = WeakValueDictionary()


class ProcessMaps:
    """The maps of this process at the time of the first search.

    Args:
        is_empty: whether no memory is to be found.
    """

    def __init__(self, *, is_empty: bool = False) -> None:
        self._is_empty = is_empty
        self._files: dict[int, MappedFile | None] = {}  # by the first address

    def find(self, address: int, size: int) -> MappedMemory | None:
        """Return the place of memory in its file; None for memory that has to be sent by its bytes."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or size == 0 or address >= self._maps[at].stop:
            return None
        start = self._starts[at]
        if start not in self._files:
            self._files[start] = self._file(self._maps[at])
        file = self._files[start]
        return None if file is None or address - start + size > file.nbytes else MappedMemory(file, address - start)

    def hold(self) -> bool:
        """Return whether the maps in which memory was found are still there, so that it was memory of theirs."""
        found = {known for known in self._maps if self._files.get(known.start) is not None}
        return not found or found <= {*_listed()}

    def _file(self, known: _Map) -> MappedFile | None:
        """Return the file of a map; None if its bytes aren't those of the map, or it can't be mapped again."""
        access: Access = "r" if known.kind[1] != "w" else "r+" if known.kind[3] == "s" else "c"
        if known.kind[3] == "p" and known.start not in self._unchanged:
            return None
        for path in (known.path, self._descriptors.get(known.file)):
            with Caught(OSError):
                if path is None or (found := os.stat(path)).st_ino != known.file[1]:
                    continue
                nbytes = min(known.stop - known.start, found.st_size - known.offset)
                can_open = os.access(path, os.R_OK | os.W_OK if access == "r+" else os.R_OK)
                if stat.S_ISREG(found.st_mode) and nbytes > 0 and can_open:
                    return MappedFile(path, found.st_ino, known.start, known.offset, nbytes, access)
        return None

    @cached_property
    def _descriptors(self) -> dict[tuple[int, int], str]:
        """The descriptors of this process, as paths for other processes, by device and inode."""
        found: dict[tuple[int, int], str] = {}
        for name in os.listdir("/proc/self/fd"):
            with Caught(OSError):
                status = os.stat(f"/proc/self/fd/{name}")
                found[status.st_dev, status.st_ino] = f"/proc/{os.getpid()}/fd/{name}"
        return found

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self._maps]

    @cached_property
    def _maps(self) -> list[_Map]:
        return [] if self._is_empty else _listed()

    @cached_property
    def _unchanged(self) -> set[int]:
        """The starts of maps that certainly have no changed pages of their own."""
        listed: set[int] = set()
        changed: set[int] = set()
        start = 0
        for line in _lines("smaps"):
            if (each := _map_of(line)) is not None:
                start = self._starts[bisect_right(self._starts, each.start) - 1] if each.has_file else 0
                listed.add(start)
            elif line.startswith(_CHANGED) and int(line.split()[1]):
                changed.add(start)
        return listed - changed


def _listed() -> list[_Map]:
    """Return the maps of files in this process now, in the order of their addresses."""
    found: list[_Map] = []
    for line in _lines("maps"):
        if (each := _map_of(line)) is None or not each.has_file:
            continue
        last = found[-1] if found else None
        if last is not None and _continues(last, each):
            found[-1] = last._replace(stop=each.stop)
        else:
            found.append(each)
    return found


def _lines(name: str) -> Iterator[str]:
    with Caught(OSError), open(f"/proc/self/{name}", encoding="utf-8", errors="surrogateescape") as file:
        yield from file


def _map_of(line: str) -> _Map | None:
    """Return the map that a line begins; None if it begins none."""
    found = _MAP.fullmatch(line)
    if found is None:
        return None
    start, stop, kind, offset, major, minor, inode, path = found.groups()
    file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
    return _Map(int(start, 16), int(stop, 16), kind, int(offset, 16), file, path)


def _continues(last: _Map, following: _Map) -> bool:
    is_next = following.start == last.stop and following.offset == last.offset + last.stop - last.start
    return is_next and (following.kind, following.file, following.path) == (last.kind, last.file, last.path)

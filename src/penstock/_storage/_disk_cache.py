"""Elements kept in a directory, up to so many bytes, shared by the processes and threads that compute the same.

Guarantees:
  - An element is read as it was written, or counts as absent: every entry carries its key and a checksum. Killing a
    process at any moment, full disks, torn files and flipped bits cost what they hit, and nothing else.
  - Any thread and any process may use the directory at once. Each process appends to files of its own, under a lock
    that ends with it; a file left unfinished is continued by the next one. What others append is found at a miss, at
    most once a second.
  - A million small elements are a few files: each grows to 64 MB, or to a 256th of the limit.
  - The files of one identity take at most `limit_bytes`, whatever was put before; processes that fill it at once may
    exceed it by a few elements. When it is full it keeps what it has, for the reason that `_memory_cache` gives.
  - Nothing is deleted but empty files of processes that died while making them, and the torn end of a file that is
    continued. Whatever else lies in the directory is left alone.
  - A copy made by pickle, or in a forked child, opens the same directory by itself.

The directory is trusted: elements beyond arrays, numbers, bytes and text are read by `pickle`, which runs what it
finds. So it is made for its owner alone (mode 0700).

Where it says `_lock`, the lock is held. Lookups don't take it: a dict's own operations are atomic.
"""

import contextlib
import logging
import os
import re
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Final

from penstock._os import renewed_after_fork
from penstock._storage._cache import FULL_SHARE, MISSING, Key, Missing
from penstock._storage._encode import decode, encode
from penstock._storage._segment import (
    ENTRY_HEAD_BYTES,
    HEAD_BYTES,
    Entry,
    append,
    entry_head,
    head_of,
    lock_new,
    read_entry,
    scan,
    try_lock,
)
from penstock._tree import Element
from penstock.errors import UsageError

_SEGMENT_BYTES: Final = 64 << 20
_MAX_SEGMENTS: Final = 256  # full ones; each takes a descriptor
_NAME: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+\.segment")
_LOOKED_AFTER_SECONDS: Final = 1.0
_BITS: Final = 48  # of an offset, and of a size: 256 TB
_MASK: Final = (1 << _BITS) - 1
_logger = logging.getLogger("penstock")


@dataclass(slots=True, eq=False, repr=False)
class _Segment:
    """A file of entries, as far as it is known."""

    name: str
    descriptor: int
    """For reading; the writer has another one, which holds the lock."""
    scanned_bytes: int = HEAD_BYTES
    size_bytes: int = HEAD_BYTES


class DiskCache:
    """Keeps elements in files below a directory.

    Two are equal if they are described equally. Making one touches no file; the first use opens it.

    Args:
        path: the directory; it is made where it is missing. Several caches may share it.
        identity: hexadecimal digits, the digest of everything that determines the elements. It names the folder.
        limit_bytes: the most bytes that the files of this identity take; not negative.

    Raises:
        UsageError: the identity isn't made of hexadecimal digits.

    Example:
        >>> cache = DiskCache("cache", "a1b2", 1 << 20)
        >>> cache.put((0, 3), {"label": 7}), DiskCache("cache", "a1b2", 1 << 20).get((0, 3))
        (True, {'label': 7})
    """

    def __init__(self, path: str | os.PathLike[str], identity: str, limit_bytes: int) -> None:
        if not identity or set(identity) - set("0123456789abcdef"):
            raise UsageError(f"the identity of a cache must be hexadecimal digits; got {identity!r}. Give a digest.")
        self._path = os.path.abspath(path)
        self._identity = identity
        self._limit_bytes = limit_bytes
        self._folder = os.path.join(self._path, identity)
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._finalizer = weakref.finalize(self, _close_all, self._descriptors)
        self._reset()
        renewed_after_fork(self)

    def _reset(self) -> None:
        self._segments: list[_Segment] = []
        self._strangers: set[str] = set()  # names of files that aren't ours
        self._places: dict[Key, int] = {}  # packed, as there may be many millions: segment, offset, size
        self._spare: dict[Key, list[int]] = {}  # further places of keys that several processes put at once
        self._writing: int | None = None  # the number of this process's own file
        self._writer: int | None = None  # the descriptor that appends to it
        self._held_bytes = 0
        self._put_bytes = 0  # since others' files were looked at
        self._look_at_seconds = 0.0
        self._is_full = False

    @property
    def held_bytes(self) -> int:
        """How many bytes the files of this identity take, as far as is known."""
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._places)

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def open(self) -> None:
        """Make the directory if it is missing, and find what every process has put so far.

        Needed by nobody: `get` and `put` do so by themselves, at first and then now and again.

        Raises:
            UsageError: the directory can't be made or read.
        """
        with self._lock:
            self._look()

    def get(self, key: Key, /) -> Element | Missing:
        """Return a new copy of the element kept for a key, or `MISSING`.

        Raises:
            UsageError: the directory can't be made or read.
        """
        place = self._places.get(key)
        if place is None and time.monotonic() >= self._look_at_seconds:
            with self._lock:
                self._look_now_and_again()
            place = self._places.get(key)
        while place is not None:
            segment, entry = self._segments[place >> 2 * _BITS], Entry(key, place >> _BITS & _MASK, place & _MASK)
            data = read_entry(segment.descriptor, entry)
            if data is not None:
                with contextlib.suppress(Exception):  # such as a pickle of a class that is gone
                    return decode(data)
            place = self._forget(key, place)
        return MISSING

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element unless there is one or no room, and return whether the cache has one for the key.

        Raises:
            UsageError: a leaf can't be made bytes, or the directory can't be made or read.
        """
        if key in self._places or self._is_full:
            return key in self._places
        data = encode(element)
        with self._lock:
            self._look_now_and_again()
            if key in self._places or self._is_full:
                return key in self._places
            if self._held_bytes + HEAD_BYTES + ENTRY_HEAD_BYTES + len(data) > self._limit_bytes:
                self._is_full = self._held_bytes >= self._limit_bytes * FULL_SHARE
                return False
            try:
                self._append(key, data)
            except OSError as error:
                self._stop_writing()
                _logger.warning("nothing more is put into the cache %s: %s", self._folder, str(error))
                return False
        return True

    def close(self) -> None:
        """Close its files, as dropping the cache does; not while another thread uses it. Using it opens it again."""
        with self._lock:
            _close_all(self._descriptors)
            self._reset()

    def renew_after_fork(self) -> None:
        """Make a new lock, and leave the parent's file to the parent."""
        self._lock = threading.Lock()
        self._close_writer()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DiskCache):
            return NotImplemented
        return self._description() == other._description()

    def __hash__(self) -> int:
        return hash(self._description())

    def __reduce__(self) -> tuple[type["DiskCache"], tuple[str, str, int]]:
        return DiskCache, self._description()

    def __repr__(self) -> str:
        path, identity, limit_bytes = self._description()
        return f"DiskCache({path!r}, {identity!r}, {limit_bytes})"

    def _description(self) -> tuple[str, str, int]:
        return self._path, self._identity, self._limit_bytes

    def _forget(self, key: Key, place: int) -> int | None:
        """Drop a place that can't be read, and return another one of the key."""
        with self._lock:
            if self._places.get(key) == place:
                others = self._spare.get(key)
                if others:
                    self._places[key] = others.pop()
                else:
                    del self._places[key]
            return self._places.get(key)

    def _look_now_and_again(self) -> None:
        """Look at others' files, with `_lock`, if it is time, or if what they have put could matter for the limit."""
        left = self._limit_bytes - self._held_bytes
        if time.monotonic() >= self._look_at_seconds or self._put_bytes * 8 > left:
            self._look()

    def _look(self) -> None:
        """Find new files and entries, with `_lock`."""
        try:
            self._find_files()
            for number in range(len(self._segments)):
                if number != self._writing:
                    self._scan(number)
        except OSError as error:
            if not self._look_at_seconds:
                raise UsageError(
                    f"the path of a cache must be a directory that can be made and read; got {self._path!r} "
                    f"({error}). Give another path, or make it accessible."
                ) from error
            _logger.debug("the cache %s could not be looked at: %s", self._folder, str(error))
        self._held_bytes = sum(segment.size_bytes for segment in self._segments)
        self._put_bytes = 0
        self._look_at_seconds = time.monotonic() + _LOOKED_AFTER_SECONDS

    def _find_files(self) -> None:
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        known = {segment.name for segment in self._segments} | self._strangers
        for name in sorted(os.listdir(self._folder)):
            if name not in known and _NAME.fullmatch(name):
                self._add_file(name)

    def _add_file(self, name: str) -> None:
        try:
            descriptor = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # someone tidied up
            return
        try:
            head = os.pread(descriptor, HEAD_BYTES, 0)
        except OSError:  # a folder, or a part of the disk that can't be read
            head = b"?"
        if head == head_of(self._identity):
            self._descriptors.append(descriptor)
            self._segments.append(_Segment(name, descriptor))
            return
        if head_of(self._identity).startswith(head):
            self._remove_unmade(name, descriptor)
        else:
            self._strangers.add(name)
        os.close(descriptor)

    def _remove_unmade(self, name: str, descriptor: int) -> None:
        """Remove a file without a whole head, unless the process that makes it lives; it then finds no name to it."""
        if try_lock(descriptor) and os.fstat(descriptor).st_size < HEAD_BYTES:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, name))

    def _scan(self, number: int) -> None:
        """Find the entries that were appended to a file since it was last scanned."""
        segment = self._segments[number]
        size = os.fstat(segment.descriptor).st_size
        if size == segment.size_bytes and size > HEAD_BYTES:
            return
        entries, segment.scanned_bytes = scan(segment.descriptor, min(segment.scanned_bytes, size), size)
        segment.size_bytes = size
        for entry in entries:
            self._add_entry(number, entry)

    def _add_entry(self, number: int, entry: Entry) -> None:
        place = number << 2 * _BITS | entry.offset << _BITS | entry.size
        first = self._places.setdefault(entry.key, place)
        if first != place:
            self._spare.setdefault(entry.key, []).append(place)

    def _append(self, key: Key, data: bytes) -> None:
        """Append an entry to a file of this process, with `_lock`."""
        head = entry_head(key, data)
        size = len(head) + len(data)
        number, writer = self._ready_to_write(size)
        segment = self._segments[number]
        try:
            append(writer, [head, data])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(writer, segment.size_bytes)
            raise
        self._add_entry(number, Entry(key, segment.size_bytes, len(data)))
        segment.size_bytes += size
        segment.scanned_bytes = segment.size_bytes
        self._held_bytes += size
        self._put_bytes += size

    def _ready_to_write(self, size: int) -> tuple[int, int]:
        """Return the number of a file with room for so many bytes, and the descriptor that appends to it."""
        most = max(_SEGMENT_BYTES, self._limit_bytes // _MAX_SEGMENTS)
        if self._writing is not None and self._segments[self._writing].size_bytes + size > most:
            self._close_writer()
        if self._writing is None or self._writer is None:
            self._writing, self._writer = self._continue_one(most) or self._make_one()
        return self._writing, self._writer

    def _continue_one(self, most: int) -> tuple[int, int] | None:
        """Take over a file that its process has left half empty, and cut off its torn end."""
        for number, segment in enumerate(self._segments):
            if segment.size_bytes > most // 2:
                continue
            with contextlib.suppress(OSError):  # removed by someone, or not ours to write
                writer = os.open(os.path.join(self._folder, segment.name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                if try_lock(writer):
                    self._descriptors.append(writer)
                    self._scan(number)
                    os.ftruncate(writer, segment.scanned_bytes)
                    self._held_bytes -= segment.size_bytes - segment.scanned_bytes
                    segment.size_bytes = segment.scanned_bytes
                    return number, writer
                os.close(writer)
        return None

    def _make_one(self) -> tuple[int, int]:
        """Make a new file, locked."""
        while True:
            name = f"{time.time_ns():x}-{os.getpid():x}.segment"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                writer = os.open(os.path.join(self._folder, name), flags, 0o600)
            except FileExistsError:  # another thread's cache of the same directory
                continue
            self._descriptors.append(writer)
            lock_new(writer)
            if os.fstat(writer).st_nlink == 0:  # another process took it for one whose maker has died
                self._close(writer)
                continue
            append(writer, [head_of(self._identity)])
            reader = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_CLOEXEC)
            self._descriptors.append(reader)
            self._segments.append(_Segment(name, reader))
            self._held_bytes += HEAD_BYTES
            return len(self._segments) - 1, writer

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._close(self._writer)
        self._writing = self._writer = None

    def _close(self, descriptor: int) -> None:
        self._descriptors.remove(descriptor)
        os.close(descriptor)

    def _stop_writing(self) -> None:
        self._is_full = True
        self._close_writer()


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())

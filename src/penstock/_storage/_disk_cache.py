"""The cache in a directory, with a limit in bytes, shared by the processes and threads that compute the same elements.

Guarantees:
  - An element is read exactly as it was written, or counts as missing: every entry has its key and a checksum. A killed
    process, a full disk, a torn file or a flipped bit costs only the elements whose bytes it damages; in the head of a
    file, all elements of the file.
  - Any thread and any process may use the directory at once. Each process appends to files of its own, under a lock
    that ends with the process; the next process continues a file that isn't full. After a miss a process looks for
    entries of other processes, at most once a second.
  - A million small elements take few files: each grows to 64 MB, or to a 256th of the limit if that is more.
  - The files of one identity take at most `limit_bytes`; processes that fill the cache at once may exceed it by a few
    elements. A full cache evicts nothing, for the reason in `_cache`.
  - It deletes only empty files of processes that died while creating them, and the torn end of a file that it
    continues. It doesn't touch other files in the directory.
  - A pickled copy, and a copy in a forked child, opens the same directory by itself.

The format of a file: a head, then entries one after another, each with checksums of its own.

    head    magic, 8 bytes | version, 4 | identity of the elements, 32 | CRC-32 of these, 4
    entry   magic, 4 | integers in the key, 2 | 0, 2 | CRC-32 of the element, 4 | its size, 8 | the key, 24
            | CRC-32 of these, 4 | the element, as `_encode` has it

All numbers are little-endian. If the number of integers is 0, the key is a bare integer. Only the process that holds
the file's lock appends entries; if it dies during a write, the end of the file is torn, and a scan stops there. A scan
continues after a damaged head at the next entry, if there is one. Every read checks its entry again, since a disk may
lose its last writes when the power fails.

The directory is trusted: `pickle` reads elements other than arrays, numbers, bytes and text, and it runs code. So the
directory is created for its owner alone (mode 0700).

Functions whose docstring says "with `_lock`" are called with the lock held. Lookups don't take it: the operations of a
dict are atomic.
"""

import contextlib
import hashlib
import logging
import os
import re
import struct
import sys
import threading
import time
import weakref
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock._os import local_path, renewed_after_fork
from penstock._storage._cache import FULL_SHARE, MISSING, Key, Missing
from penstock._storage._encode import decode, encode
from penstock._tree import Element
from penstock.errors import UsageError

_SEGMENT_BYTES: Final = 64 << 20
_MAX_SEGMENTS: Final = 256  # full segments; each takes a descriptor
_NAME: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+\.segment")
_REFRESH_SECONDS: Final = 1.0
_BITS: Final = 48  # of an offset, and of a size: 256 TB
_MASK: Final = (1 << _BITS) - 1
_logger = logging.getLogger("penstock")
_MAGIC: Final = b"penstock"
_VERSION: Final = 2  # files of another version count as absent
_HEAD: Final = struct.Struct("<8sI32s")
_ENTRY_MAGIC: Final = b"pse\x01"
_ENTRY: Final = struct.Struct("<4sHHIQ3q")
_CHECK: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CHECK.size
ENTRY_HEAD_BYTES: Final = _ENTRY.size + _CHECK.size
_CHUNK_BYTES: Final = 1 << 16


class Entry(NamedTuple):
    """The place of an element in a file."""

    key: Key
    offset: int
    """The start of the entry's head, in bytes."""
    size: int
    """The number of bytes of the element after the head."""


@dataclass(slots=True, eq=False, repr=False)
class _Segment:
    """A file of entries; other processes may have appended more."""

    name: str
    descriptor: int
    """For reading; the writer uses another one, which holds the lock."""
    scanned_bytes: int = HEAD_BYTES
    size_bytes: int = HEAD_BYTES


class DiskCache:
    """Keeps elements in files below a directory.

    Two caches with equal arguments are equal. The constructor touches no file; the first use opens the directory.

    Args:
        path: the directory; it is created if it doesn't exist. Several caches may share it.
        identity: hexadecimal digits, the digest of all that determines the elements. It names the folder.
        limit_bytes: the limit on the files of this identity, in bytes; not negative.

    Raises:
        UsageError: the identity has other characters than hexadecimal digits.

    Example:
        >>> cache = DiskCache("cache", "a1b2", 1 << 20)
        >>> cache.put((0, 3), {"label": 7}), DiskCache("cache", "a1b2", 1 << 20).get((0, 3))
        (True, {'label': 7})
    """

    def __init__(self, path: str | os.PathLike[str], identity: str, limit_bytes: int) -> None:
        if not identity or set(identity) - set("0123456789abcdef"):
            raise UsageError(f"the identity of a cache must be hexadecimal digits; got {identity!r}. Pass a digest.")
        self._path = local_path(path)
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
        self._foreign_names: set[str] = set()  # names of files that aren't of this cache
        self._places: dict[Key, int] = {}  # segment, offset and size in one int: there may be many millions
        self._duplicates: dict[Key, list[int]] = {}  # more places of keys that several processes put at once
        self._writing: int | None = None  # the number of this process's own file
        self._writer: int | None = None  # the descriptor that appends to it
        self._held_bytes = 0
        self._put_bytes = 0  # since the last refresh
        self._refresh_at_seconds = 0.0
        self._is_full = False

    @property
    def held_bytes(self) -> int:
        """The number of bytes of the files of this identity, at the last refresh."""
        return self._held_bytes

    def __len__(self) -> int:
        return len(self._places)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def open(self) -> None:
        """Create the directory if it is missing, and find the entries of all processes so far.

        It is optional: `get` and `put` do the same at the first call and from time to time.

        Raises:
            UsageError: the directory can't be created or read.
        """
        with self._lock:
            self._refresh()

    def get(self, key: Key, /) -> Element | Missing:
        """Return a new copy of the element kept for a key, or `MISSING`.

        Raises:
            UsageError: the directory can't be created or read.
        """
        place = self._places.get(key)
        if place is None and time.monotonic() >= self._refresh_at_seconds:
            with self._lock:
                self._refresh_if_due()
            place = self._places.get(key)
        while place is not None:
            segment, entry = self._segments[place >> 2 * _BITS], Entry(key, place >> _BITS & _MASK, place & _MASK)
            data = read_entry(segment.descriptor, entry)
            if data is not None:
                with contextlib.suppress(Exception):  # such as a pickle of a class that no longer exists
                    return decode(data)
            place = self._drop_place(key, place)
        return MISSING

    def put(self, key: Key, element: Element, /) -> bool:
        """Keep a copy of an element if there is room and none is kept; return whether the cache has one for the key.

        Raises:
            UsageError: a leaf can't be converted to bytes, or the directory can't be created or read.
        """
        if key in self._places or self._is_full:
            return key in self._places
        data = encode(element)
        with self._lock:
            self._refresh_if_due()
            if key in self._places or self._is_full:
                return key in self._places
            if self._held_bytes + HEAD_BYTES + ENTRY_HEAD_BYTES + len(data) > self._limit_bytes:
                self._is_full = self._held_bytes >= self._limit_bytes * FULL_SHARE
                return False
            try:
                self._append(key, data)
            except OSError as error:
                self._stop_writing()
                _logger.warning("the cache %s takes no more elements: %s", self._folder, str(error))
                return False
        return True

    def close(self) -> None:
        """Close the files, as dropping the cache does, while no other thread uses it. The next use reopens them."""
        with self._lock:
            _close_all(self._descriptors)
            self._reset()

    def renew_after_fork(self) -> None:
        """Create a new lock, and stop writing to the parent's file."""
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

    def _drop_place(self, key: Key, place: int) -> int | None:
        """Drop a place that can't be read, and return another one of the key."""
        with self._lock:
            if self._places.get(key) == place:
                others = self._duplicates.get(key)
                if others:
                    self._places[key] = others.pop()
                else:
                    del self._places[key]
            return self._places.get(key)

    def _refresh_if_due(self) -> None:
        """Refresh, with `_lock`, after a second, or if entries of other processes could exceed the limit."""
        left = self._limit_bytes - self._held_bytes
        if time.monotonic() >= self._refresh_at_seconds or self._put_bytes * 8 > left:
            self._refresh()

    def _refresh(self) -> None:
        """Find new files and entries of other processes, with `_lock`."""
        try:
            self._find_files()
            for number in range(len(self._segments)):
                if number != self._writing:
                    self._scan(number)
        except OSError as error:
            if not self._refresh_at_seconds:
                raise UsageError(
                    f"the path of a cache must be a directory that can be created and read; got {self._path!r} "
                    f"({error}). Pass another path, or change its permissions."
                ) from error
            _logger.debug("the cache %s could not be refreshed: %s", self._folder, str(error))
        self._held_bytes = sum(segment.size_bytes for segment in self._segments)
        self._put_bytes = 0
        self._refresh_at_seconds = time.monotonic() + _REFRESH_SECONDS

    def _find_files(self) -> None:
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        known = {segment.name for segment in self._segments} | self._foreign_names
        for name in sorted(os.listdir(self._folder)):
            if name not in known and _NAME.fullmatch(name):
                self._add_file(name)

    def _add_file(self, name: str) -> None:
        try:
            descriptor = os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed it
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
            self._remove_unfinished(name, descriptor)
        else:
            self._foreign_names.add(name)
        os.close(descriptor)

    def _remove_unfinished(self, name: str, descriptor: int) -> None:
        """Remove a file without a whole head, unless its creator still runs, which checks for that."""
        if try_lock(descriptor) and os.fstat(descriptor).st_size < HEAD_BYTES:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, name))

    def _scan(self, number: int) -> None:
        """Find the entries that were appended to a file since its last scan."""
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
            self._duplicates.setdefault(entry.key, []).append(place)

    def _append(self, key: Key, data: bytes) -> None:
        """Append an entry to a file of this process, with `_lock`."""
        head = entry_head(key, data)
        size = len(head) + len(data)
        number, writer = self._ready_to_write(size)
        segment = self._segments[number]
        try:
            append(writer, [head, data])
        except BaseException:  # also of a signal's handler, after the whole entry was written
            with contextlib.suppress(OSError):
                os.ftruncate(writer, segment.size_bytes)
            raise
        self._add_entry(number, Entry(key, segment.size_bytes, len(data)))
        segment.size_bytes += size
        segment.scanned_bytes = segment.size_bytes
        self._held_bytes += size
        self._put_bytes += size

    def _ready_to_write(self, size: int) -> tuple[int, int]:
        """Return the index of a file with room for `size` bytes, and the descriptor that appends to it."""
        most = max(_SEGMENT_BYTES, self._limit_bytes // _MAX_SEGMENTS)
        if self._writing is not None and self._segments[self._writing].size_bytes + size > most:
            self._close_writer()
        if self._writing is None or self._writer is None:
            self._writing, self._writer = self._continue_segment(most) or self._create_segment()
        return self._writing, self._writer

    def _continue_segment(self, most: int) -> tuple[int, int] | None:
        """Continue a file that another process left at most half full, and truncate its torn end."""
        for number, segment in enumerate(self._segments):
            if segment.size_bytes > most // 2:
                continue
            with contextlib.suppress(OSError):  # it was removed, or has no write permission
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

    def _create_segment(self) -> tuple[int, int]:
        """Create a new file, locked."""
        while True:
            name = f"{time.time_ns():x}-{os.getpid():x}.segment"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                writer = os.open(os.path.join(self._folder, name), flags, 0o600)
            except FileExistsError:  # another thread created it for a cache of the same directory
                continue
            self._descriptors.append(writer)
            lock_new(writer)
            if os.fstat(writer).st_nlink == 0:  # another process removed it, since it took the creator for dead
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


def head_of(identity: str) -> bytes:
    """Return the head of a file of elements with this identity."""
    digest = hashlib.blake2b(identity.encode(), digest_size=32).digest()
    return _checked(_HEAD.pack(_MAGIC, _VERSION, digest))


def entry_head(key: Key, element: bytes) -> bytes:
    """Return the head of an element's entry."""
    parts = (key,) if isinstance(key, int) else key
    count = 0 if isinstance(key, int) else len(key)
    padded = (*parts, 0, 0)[:3]
    return _checked(_ENTRY.pack(_ENTRY_MAGIC, count, 0, zlib.crc32(element), len(element), *padded))


def read_entry(descriptor: int, entry: Entry) -> bytes | None:
    """Return an element's bytes; None if they are damaged or can't be read."""
    size = ENTRY_HEAD_BYTES + entry.size
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < size:  # one call returns at most 2 GiB
            read = os.pread(descriptor, size - len(data), entry.offset + len(data))
            if not read:
                break
            data = data + read if data else read
    element = data[ENTRY_HEAD_BYTES:]
    if len(data) != size or data[:ENTRY_HEAD_BYTES] != entry_head(entry.key, element):
        return None
    return element


def scan(descriptor: int, start: int, stop: int) -> tuple[list[Entry], int]:
    """Return the whole entries between two offsets, without those whose heads are damaged, and the end of the last one.

    Args:
        descriptor: the file's descriptor, open for reading.
        start: the start of an entry.
        stop: the file's size.
    """
    entries: list[Entry] = []
    chunk, chunk_start = b"", start
    while start + ENTRY_HEAD_BYTES <= stop:
        if start + ENTRY_HEAD_BYTES > chunk_start + len(chunk):
            chunk, chunk_start = os.pread(descriptor, _CHUNK_BYTES, start), start
        entry = _parsed(chunk[start - chunk_start : start - chunk_start + ENTRY_HEAD_BYTES], start)
        if entry is None:
            entry = _next_entry(descriptor, start + 1, stop)
        if entry is None or _end_of(entry) > stop:
            break
        entries.append(entry)
        start = _end_of(entry)
    return entries, start


def _next_entry(descriptor: int, start: int, stop: int) -> Entry | None:
    """Return the first whole entry between two offsets."""
    while start + ENTRY_HEAD_BYTES <= stop:
        chunk = os.pread(descriptor, _CHUNK_BYTES, start)
        place = chunk.find(_ENTRY_MAGIC)
        if place < 0:
            if len(chunk) < len(_ENTRY_MAGIC):  # another process has cut off the torn end
                break
            start += len(chunk) - len(_ENTRY_MAGIC) + 1
            continue
        start += place
        entry = _parsed(os.pread(descriptor, ENTRY_HEAD_BYTES, start), start)
        if entry is not None and _end_of(entry) <= stop:
            return entry
        start += 1
    return None


def _end_of(entry: Entry) -> int:
    return entry.offset + ENTRY_HEAD_BYTES + entry.size


def append(descriptor: int, parts: list[bytes]) -> None:
    """Write the parts at the end of a file opened for appending; all of them, or OSError."""
    left = sum(map(len, parts)) - os.writev(descriptor, parts)
    if left:
        rest = memoryview(b"".join(parts))[-left:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


if sys.platform == "win32":

    def try_lock(descriptor: int) -> bool:
        """Return False: Windows has no such locks, so no process continues the file of another."""
        del descriptor
        return False

    def lock_new(descriptor: int) -> None:
        """Do nothing: only the creator of the file uses its name."""
        del descriptor

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Lock a file for this descriptor; return False if another has the lock, or the file system has no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def lock_new(descriptor: int) -> None:
        """Lock a file that this process has just created; wait while another process checks for its creator."""
        with contextlib.suppress(OSError):  # without locks no process continues the file of another
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _parsed(head: bytes, offset: int) -> Entry | None:
    if len(head) < ENTRY_HEAD_BYTES or head != _checked(head[: _ENTRY.size]):
        return None
    magic, count, _, _, size, *parts = _ENTRY.unpack_from(head)
    if magic != _ENTRY_MAGIC or count > len(parts):
        return None
    return Entry(tuple(parts[:count]) if count else parts[0], offset, size)


def _checked(head: bytes) -> bytes:
    return head + _CHECK.pack(zlib.crc32(head))

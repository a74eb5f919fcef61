"""The file format of a disk cache: a head, then entries one after another, each with checksums of its own.

    head    magic, 8 bytes | version, 4 | identity of the elements, 32 | CRC-32 of these, 4
    entry   magic, 4 | integers in the key, 2 | 0, 2 | CRC-32 of the element, 4 | its size, 8 | the key, 24
            | CRC-32 of these, 4 | the element, as `_encode` has it

All numbers are little-endian. A count of 0 integers is a bare integer. Only the process that holds the file's lock
appends entries; if it dies during a write, the end of the file is torn, and a scan stops there. Every read checks its
entry again, since a disk may lose its last writes when the power fails.
"""

import contextlib
import hashlib
import os
import struct
import sys
import zlib
from typing import Final, NamedTuple

from penstock._storage._cache import Key

_MAGIC: Final = b"penstock"
_VERSION: Final = 1
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
    """Return the whole entries between two offsets, and the end of the last of them.

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
        if entry is None or start + ENTRY_HEAD_BYTES + entry.size > stop:
            break
        entries.append(entry)
        start += ENTRY_HEAD_BYTES + entry.size
    return entries, start


def append(descriptor: int, parts: list[bytes]) -> None:
    """Write the parts at the end of a file opened for appending; all of them, or OSError."""
    left = sum(map(len, parts)) - os.writev(descriptor, parts)
    if left:
        rest = memoryview(b"".join(parts))[-left:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


if sys.platform == "win32":

    def try_lock(descriptor: int) -> bool:
        """Return False: there are no such locks here, and no process continues the file of another."""
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
        """Lock a file that this process has just created; wait for a process that checks whether the creator lives."""
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

"""The file that keeps a filter's verdicts: one bit for each element, checked as a whole.

    magic, 16 bytes | version, 4 | 0, 4 | elements, 8 | how many are kept, 8 | source, 8 | order, 8 | functions, 8
    the bits, eight elements a byte, the lowest bit first | BLAKE2b of all before, 16 bytes

All numbers are little-endian. The file is written under another name and renamed, so it is there as a whole or not at
all, whenever a process dies.

Guarantees, where the file system has locks:
  - Of all processes that want to write a file, one at a time is *alone*; the others wait, and may then find it written.
  - A process that dies lets the next one go on. The name it wrote under is used again.

Where it has none, everyone is alone at once, under names of their own, and the last to rename wins.
"""

import contextlib
import hashlib
import logging
import os
import struct
import sys
from collections.abc import Generator
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from penstock._graph._fingerprint import Fingerprint
from penstock.errors import UsageError
from penstock.sampling import Bits
from penstock.sources import map_file

_MAGIC: Final = b"penstock filter\n"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<16sI4xQQ8s8s8s")
_CHECK_BYTES: Final = 16
_logger = logging.getLogger("penstock")


class Found(NamedTuple):
    """What a file holds."""

    bits: Bits | None
    unfit: str = ""
    """Why it is of no use, if there is one."""


def read_index(path: str, identity: Fingerprint, length: int) -> Found:
    """Return the bits in a file, or why they are not those wanted.

    Args:
        path: of the file; there may be none.
        identity: of the dataset below the filter and of all functions.
        length: how many elements there are.

    Raises:
        UsageError: if the file is something else, or can't be read.
    """
    try:
        if os.path.exists(path) and os.path.getsize(path) < len(_MAGIC):
            _refuse_foreign(path)
        content = map_file(path)
    except FileNotFoundError:
        return Found(None)
    except OSError as error:
        raise UsageError(
            f"index={path!r} can't be read: {error.strerror}. Name a file, or one that doesn't exist yet."
        ) from error
    if bytes(content[: len(_MAGIC)]) != _MAGIC:
        _refuse_foreign(path)
    size = len(content) - _CHECK_BYTES
    if size < _HEAD.size or _digest(content[:size].data) != bytes(content[size:]):
        return Found(None, "it is damaged")
    _, version, elements, kept, source, order, functions = _HEAD.unpack(bytes(content[: _HEAD.size]))
    if version != _VERSION:
        return Found(None, f"it is of version {version} of the format, and this is version {_VERSION}")
    known = Fingerprint(source.hex(), order.hex(), functions.hex(), {})
    differing = [part for part in ("source", "order", "functions") if getattr(known, part) != getattr(identity, part)]
    if differing or elements != length:
        what = " and ".join(differing) or "length"
        return Found(None, f"it was made for a dataset or predicate with another {what}")
    bits = Bits(content[_HEAD.size : size], length)
    return Found(bits) if len(bits) == kept else Found(None, "it is damaged")


def _refuse_foreign(path: str) -> None:
    raise UsageError(
        f"index={path!r} is a file of another kind, and is left as it is. Name another file, or remove this one."
    )


def _digest(data: memoryview | bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


class Alone(NamedTuple):
    """The right to write a file, under a temporary name at first."""

    path: str
    temporary: str
    stream: BinaryIO

    def write(self, identity: Fingerprint, bits: Bits) -> None:
        """Write the bits, and rename the file to its place: atomically, over whatever is there.

        Raises:
            OSError: if it can't be written; what was there is still there.
        """
        parts = (bytes.fromhex(part) for part in (identity.source, identity.order, identity.functions))
        content = bytearray(_HEAD.pack(_MAGIC, _VERSION, bits.parent_length, len(bits), *parts))
        content += np.ascontiguousarray(bits.packed).data
        content += _digest(content)
        self.stream.truncate(0)  # what a process wrote before it died
        self.stream.write(content)
        self.stream.flush()
        os.fsync(self.stream.fileno())
        if sys.platform == "win32":
            self.stream.close()  # an open file can't be renamed there
        os.replace(self.temporary, self.path)


@contextlib.contextmanager
def alone(path: str) -> Generator[Alone]:
    """Be the only one to write a file for as long as the block runs; others wait before theirs.

    Args:
        path: of the file.

    Yields:
        The right to write it; if it isn't used, nothing is left behind.

    Raises:
        UsageError: if nothing can be written where the file is to be.
    """
    try:
        temporary, descriptor = _open_alone(path)
    except OSError as error:
        raise UsageError(
            f"index={path!r} can't be written: {error.strerror}. Name a file in a directory that exists and that you "
            "may write to."
        ) from error
    with open(descriptor, "wb") as stream:
        try:
            yield Alone(path, temporary, stream)
        finally:
            # After a rename the name is gone, or another process's already: then it is another file.
            with contextlib.suppress(OSError):
                if stream.closed or _is_named(descriptor, temporary):
                    os.unlink(temporary)
            if not stream.closed:
                _unlock(descriptor)


def _open_alone(path: str) -> tuple[str, int]:
    """Return the temporary name, and a descriptor that holds its lock if there are locks."""
    directory, name = os.path.split(path)
    shared = os.path.join(directory, f".{name}.partial")
    while True:
        descriptor = os.open(shared, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_locked = _lock(descriptor, path)
            if is_locked and _is_named(descriptor, shared):
                return shared, descriptor
            if not is_locked:
                with contextlib.suppress(OSError):  # of no use to anyone, and perhaps removed by another process
                    os.unlink(shared)
        except BaseException:  # also when Ctrl-C ends the waiting
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_locked:
            own = os.path.join(directory, f".{name}.{os.urandom(8).hex()}.partial")
            return own, os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _is_named(descriptor: int, path: str) -> bool:
    """Return whether a path leads to an open file: not if it was renamed, or removed and made again."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":

    def _lock(descriptor: int, path: str) -> bool:
        """Return False: there are no such locks."""
        del descriptor, path
        return False

    def _unlock(descriptor: int) -> None:
        """Do nothing."""
        del descriptor

else:
    import fcntl

    def _lock(descriptor: int, path: str) -> bool:
        """Return True when an open file is locked, however long that takes; False where there are no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.info("waiting for another process, which is computing %s", path)
        except OSError:
            return False
        else:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True

    def _unlock(descriptor: int) -> None:
        """Unlock it, even if a forked child holds it open too."""
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)

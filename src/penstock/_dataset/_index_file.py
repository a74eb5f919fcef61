"""The file of an indexed filter: one bit for each element, and a checksum.

    magic, 16 bytes | version, 4 | 0, 4 | elements, 8 | number of 1 bits, 8 | source, 8 | order, 8 | functions, 8
    the bits, eight elements a byte, the lowest bit first | BLAKE2b of all before, 16 bytes

All numbers are little-endian. The file is written under a temporary name and renamed, so after a crash of the process
it is either complete or missing.

Guarantees, if the file system has locks:
  - One process at a time has the right to write a file (`alone`); others wait, and may then find it written.
  - When a process dies, the next one gets the right, and writes under the same temporary name.

Without locks, all processes write at once, under names of their own, and the last rename wins.
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

from penstock._graph import Fingerprint
from penstock.errors import UsageError
from penstock.sampling import Bits
from penstock.sources import map_file

_MAGIC: Final = b"penstock filter\n"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<16sI4xQQ8s8s8s")
_CHECK_BYTES: Final = 16
_logger = logging.getLogger("penstock")


class Found(NamedTuple):
    """The content of a file."""

    bits: Bits | None
    unfit: str = ""
    """The reason why an existing file can't be used."""


def read_index(path: str, identity: Fingerprint, length: int) -> Found:
    """Return the bits in a file, or the reason why they can't be used.

    Args:
        path: of the file, which may be missing.
        identity: of the dataset below the filter and of all functions.
        length: the number of elements.

    Raises:
        UsageError: the file is of another kind, or can't be read.
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
        f"index={path!r} is a file of another kind, and is not overwritten. Name another file, or remove this one."
    )


def _digest(data: memoryview | bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


class Alone(NamedTuple):
    """The right to write a file, under a temporary name at first."""

    path: str
    temporary: str
    stream: BinaryIO

    def write(self, identity: Fingerprint, bits: Bits) -> None:
        """Write the bits, and rename the file to its final name atomically, over an existing file.

        Raises:
            OSError: it can't be written. An existing file is unchanged.
        """
        parts = (bytes.fromhex(part) for part in (identity.source, identity.order, identity.functions))
        content = bytearray(_HEAD.pack(_MAGIC, _VERSION, bits.parent_length, len(bits), *parts))
        content += np.ascontiguousarray(bits.packed).data
        content += _digest(content)
        self.stream.truncate(0)  # a process that died may have written some bytes
        self.stream.write(content)
        self.stream.flush()
        os.fsync(self.stream.fileno())
        if sys.platform == "win32":
            self.stream.close()  # an open file can't be renamed there
        os.replace(self.temporary, self.path)


@contextlib.contextmanager
def alone(path: str) -> Generator[Alone]:
    """Hold the right to write a file while the block runs; other processes wait.

    Args:
        path: of the file.

    Yields:
        The right to write; if it isn't used, no file is left.

    Raises:
        UsageError: no file can be written in that directory.
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
            # After a rename the temporary name is gone, or is another process's file.
            with contextlib.suppress(OSError):
                if stream.closed or _is_named(descriptor, temporary):
                    os.unlink(temporary)
            if not stream.closed:
                _unlock(descriptor)


def _open_alone(path: str) -> tuple[str, int]:
    """Return the temporary name, and a descriptor that holds its lock, if there are locks."""
    directory, name = os.path.split(path)
    shared = os.path.join(directory, f".{name}.partial")
    while True:
        descriptor = os.open(shared, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_locked = _lock(descriptor, path)
            if is_locked and _is_named(descriptor, shared):
                return shared, descriptor
            if not is_locked:
                with contextlib.suppress(OSError):  # another process may have removed it
                    os.unlink(shared)
        except BaseException:  # Ctrl-C may end the wait
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_locked:
            own = os.path.join(directory, f".{name}.{os.urandom(8).hex()}.partial")
            return own, os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _is_named(descriptor: int, path: str) -> bool:
    """Return whether a path is that of an open file, which isn't so after a rename or removal."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":

    def _lock(descriptor: int, path: str) -> bool:
        """Return False: Windows has no such locks."""
        del descriptor, path
        return False

    def _unlock(descriptor: int) -> None:
        """Do nothing."""
        del descriptor

else:
    import fcntl

    def _lock(descriptor: int, path: str) -> bool:
        """Return True once the lock of an open file is taken, after any wait; False if there are no locks."""
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
        """Release the lock, even if a forked child has the file open, too."""
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)

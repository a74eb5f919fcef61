"""The live page of a loader: memory in which it writes what it does, and which other programs of the same user read.

The problem: to see whether a training waits, somebody looks at a job that runs already, often on another machine and
without its terminal. So there is nothing that could be switched on, and the loader must not pay for being watched: no
thread, no socket, no file that a killed job leaves behind.

The solution: the page is memory without a name (a memfd). Linux shows the descriptors of a process to its user, in
/proc/PID/fd, with the text after "memfd:"; so a reader finds each page and reads it, also in a container. The page ends
with its process. The loader writes it a few times a second, in the consumer's thread, and never waits for a reader.

Layout, in the byte order of the machine:

    bytes   0 to 15   "penstock live 3" and a newline; another layout has another number
           16 to 23   uint64: the number of writes, twice; odd while the text is being written
           24 to 31   float64: when the consumer began to wait for a batch, by the monotonic clock; 0 while it doesn't
           32 to 35   uint32: the length of the text
           36 to 39   uint32: the CRC-32 of the text
           40 to 71   4 int64: the position after an epoch that ended since the text was written: the epoch, the number
                      of the next batch, the batches delivered in the epoch, and in all; the last is -1 for none
           72 to ...  the text, JSON

A text that was read while it was written fails one of two checks: the number of writes is odd or has changed, or the
CRC-32 differs. The second one holds also where processors reorder stores. The memory is sealed, so its size is fixed.

Rejected: a file in a folder for all jobs, since a killed job leaves it behind and containers don't share folders; a
socket, which needs a thread; reading the memory of the process by ptrace, which many systems forbid.
"""

import binascii
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, cast

from penstock._caught import Caught
from penstock._os import uninterrupted

_NAME: Final = "penstock-loader"
_LINK: Final = f"/memfd:{_NAME}"
_KIND: Final = b"penstock live "
_MAGIC: Final = _KIND + b"3\n"
_SEQUENCE, _WAITING = 2, 3  # numbers of words of 8 bytes
_LENGTH, _CHECKSUM = 8, 9  # numbers of words of 4 bytes
_LATER: Final = struct.Struct("qqqq")
_LATER_AT: Final = 40
_NONE: Final = (0, 0, 0, -1)
_TEXT: Final = _LATER_AT + _LATER.size
SIZE_BYTES: Final = 1 << 14
MOST_BYTES: Final = SIZE_BYTES - _TEXT
"""The longest text that a page takes."""
_TRIES: Final = 100  # at a page that is being written, which takes microseconds


class OtherLayoutError(Exception):
    """A page was written by another version of Penstock."""


class Seen(NamedTuple):
    """The content of a page."""

    values: dict[str, Any]
    waiting_since: float
    """When the consumer began to wait, by the monotonic clock; 0 if it doesn't wait."""
    later: tuple[int, int, int, int] | None = None
    """The epoch, the number of the next batch, and the batches delivered in the epoch and in all, where an epoch has
    ended after the values were written."""
    identity: int = 0
    """A number that no other page of the machine has, for readers of other programs."""


class LivePage:
    """Memory that one thread writes. It is freed with the last reference, or with the process.

    Where the system has no memfd, or refuses one, only this process can read the page.
    """

    def __init__(self) -> None:
        self._memory = _new_memory()
        self._memory[: len(_MAGIC)] = _MAGIC
        view = memoryview(self._memory)
        self._numbers = view.cast("Q")
        self._counts = view.cast("I")
        self.waiting: Final = view.cast("d")[_WAITING : _WAITING + 1]
        """One word: when the consumer began to wait, or 0."""

    def write(self, text: bytes) -> None:
        """Replace the text, at most `MOST_BYTES`."""
        start = self._numbers[_SEQUENCE] | 1  # an interrupted write has left it odd
        self._numbers[_SEQUENCE] = start
        _LATER.pack_into(self._memory, _LATER_AT, *_NONE)
        self._memory[_TEXT : _TEXT + len(text)] = text
        self._counts[_LENGTH], self._counts[_CHECKSUM] = len(text), binascii.crc32(text)
        self._numbers[_SEQUENCE] = start + 1

    def end_epoch(self, epoch: int, step: int, done: int, batches: int) -> None:
        """Write only the position, after an epoch: a text takes many times as long, and an epoch may take as little.

        Args:
            epoch: the number of the epoch.
            step: the number of the next batch.
            done: the number of batches delivered in the epoch.
            batches: the number of batches delivered in all.
        """
        start = self._numbers[_SEQUENCE] | 1
        self._numbers[_SEQUENCE] = start
        _LATER.pack_into(self._memory, _LATER_AT, epoch, step, done, batches)
        self._numbers[_SEQUENCE] = start + 1

    def read(self) -> Seen | None:
        """Return the content; None if nothing was written yet."""
        return _parsed(lambda: bytes(self._memory))


if sys.platform == "linux":
    import fcntl

    @uninterrupted  # otherwise an exception of a signal's handler could leave the descriptor open, or be lost
    def _new_memory() -> mmap.mmap:
        with Caught(OSError):  # such as too many open files
            descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(descriptor, SIZE_BYTES)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
                return mmap.mmap(descriptor, SIZE_BYTES)  # keeps a descriptor of its own, which the readers find
            finally:
                os.close(descriptor)
        return mmap.mmap(-1, SIZE_BYTES)

else:

    def _new_memory() -> mmap.mmap:
        return mmap.mmap(-1, SIZE_BYTES)


def _parsed(read: Callable[[], bytes]) -> Seen | None:
    """Return what a page holds; None if nothing was written, or its writer has ended within a write.

    Raises:
        OtherLayoutError: the page is of another version of Penstock.
    """
    for _ in range(_TRIES):
        before, after = read(), read()
        if not before.startswith(_MAGIC):
            if before.startswith(_KIND):
                raise OtherLayoutError
            return None
        numbers, counts = memoryview(before).cast("Q"), memoryview(before).cast("I")
        sequence, length = numbers[_SEQUENCE], counts[_LENGTH]
        if sequence == 0 or length > MOST_BYTES:
            return None
        text = before[_TEXT : _TEXT + length]
        is_whole = sequence % 2 == 0 and memoryview(after).cast("Q")[_SEQUENCE] == sequence
        if is_whole and binascii.crc32(text) == counts[_CHECKSUM]:
            values = json.loads(text)
            epoch, step, done, batches = _LATER.unpack_from(before, _LATER_AT)
            later = None if batches < 0 else (epoch, step, done, batches)
            return Seen(cast("dict[str, Any]", values), memoryview(after).cast("d")[_WAITING], later)
    return None


# ---------------------------------------------------------------------- the readers


class Found(NamedTuple):
    """A process, and what the pages of its loaders hold."""

    pid: int
    pages: tuple[Seen, ...]
    is_other_version: bool = False
    """Whether it has a loader whose page has another layout."""


def pages_of(pid: int) -> Found:
    """Return the pages of a process.

    Raises:
        PermissionError: the process is another user's, or protected.
        ProcessLookupError: there is no such process.
    """
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    seen: dict[int, Seen] = {}
    own_pid, is_other_version = _pid_inside(pid), False
    for name in names:
        with suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            path = f"{folder}/{name}"
            if not os.readlink(path).startswith(_LINK):
                continue
            with open(path, "rb", buffering=0) as file:
                try:
                    found = _parsed(partial(os.pread, file.fileno(), SIZE_BYTES, 0))
                except OtherLayoutError:
                    is_other_version = True
                    continue
                # A forked child inherits the descriptor of a page that is its parent's.
                if found is not None and found.values.get("pid") == own_pid:
                    number = os.fstat(file.fileno()).st_ino
                    seen[number] = found._replace(identity=number)
    return Found(pid, tuple(seen[number] for number in sorted(seen)), is_other_version)


def _pid_inside(pid: int) -> int:
    """Return the number that a process has in its own namespace, such as that of a container."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def processes() -> dict[int, int]:
    """Return the processes of this machine or container that have not ended, each with its parent."""
    parents: dict[int, int] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]  # the name before it may contain ")"
            if state not in b"ZX":  # ended, and not waited for
                parents[int(name)] = int(parent)
    return parents


def family(pid: int, parents: dict[int, int]) -> list[int]:
    """Return a process and all that it has started, of those in `parents`."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:  # grows meanwhile
        found += children.get(each, [])
    return found


def own_pages() -> Iterator[Found]:
    """Yield the processes of this user that have loaders."""
    for pid in sorted(processes()):
        with suppress(OSError):  # another user's, or it has ended
            found = pages_of(pid)
            if found.pages or found.is_other_version:
                yield found


def memory_bytes(pids: list[int]) -> int:
    """Return the memory of processes: what each has for itself, and what they share, once."""
    own, shared = 0, [0]
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            sizes = dict(line.split(":", 1) for line in file if line.startswith("Rss"))
            own += _kilobytes(sizes.get("RssAnon"))
            shared.append(_kilobytes(sizes.get("RssShmem")) + _kilobytes(sizes.get("RssFile")))
    return 1024 * (own + max(shared))


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time that processes have taken so far."""
    ticks = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _kilobytes(text: str | None) -> int:
    return 0 if text is None else int(text.split()[0])


def command_of(pid: int) -> str:
    """Return the command line of a process as text; "" if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return " ".join(part.decode("utf-8", "replace") for part in file.read().split(b"\0") if part)
    return ""

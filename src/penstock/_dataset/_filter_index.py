"""Indexed filters: `filter(…, index=path)`, computed once in parallel and kept in a file with one bit for each element.

The file has a head, the bits, and a checksum:

    magic, 16 bytes | version, 4 | 0, 4 | elements, 8 | number of 1 bits, 8 | source, 8 | order, 8 | functions, 8
    the bits, eight elements a byte, the lowest bit first | BLAKE2b of all before, 16 bytes

All numbers are little-endian. The file is written under a temporary name and renamed, so after a crash of the process
it is either complete or missing.

Guarantees of the file, if the file system has locks:
  - One process at a time has the right to write a file (`alone`); others wait, and may then find it written.
  - When a process dies, the next one gets the right, and writes under the same temporary name.

Without locks, all processes write at once, under names of their own, and the last rename wins.

In the scan, threads call a function for ranges of all positions. A range has as many positions as are computed in
`_RANGE_SECONDS`, and towards the end fewer, so that all threads end together (guided self-scheduling, after
Polychronopoulos and Kuck, 1987).

Guarantees of the scan:
  - The ranges follow each other from 0 to the total. Their results come in that order, each exactly once.
  - At most a few ranges a thread are being computed or wait to be taken, however slowly they are taken.
  - An exception of the function comes in the place of its range's result; results before it come first, none after.
  - When the generator is closed, fails or is interrupted, no further range is begun. Threads are daemons; the ranges
    that they are in take some milliseconds and are waited for, at most `FUNCTION_SECONDS`.
"""

import contextlib
import hashlib
import logging
import os
import struct
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import BinaryIO, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._decisions import RANGE_POSITIONS, decide
from penstock._graph import (
    Context,
    Filter,
    Fingerprint,
    Map,
    Node,
    Substitute,
    all_details,
    argument_texts,
    chain_text,
    evaluate_block,
    fingerprint,
    function_identities,
    hold_order,
    need_finite,
    sampler_texts,
    source_identities,
    walk,
)
from penstock._os import Bell, DaemonThread, local_path, uninterrupted
from penstock._processes import FUNCTION_SECONDS
from penstock._progress import Progress, counted
from penstock.errors import GraphError, UsageError
from penstock.sampling import Bits
from penstock.sources import map_file

_RANGE_SECONDS: Final = 0.02
_MAX_POSITIONS: Final = 1 << 14
_RANGES_PER_THREAD: Final = 4
_MAGIC: Final = b"penstock filter\n"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<16sI4xQQ8s8s8s")
_CHECK_BYTES: Final = 16
_logger = logging.getLogger("penstock")
Result = TypeVar("Result")
Task: TypeAlias = Callable[[int, int], Result]


class Found(NamedTuple):
    """The content of a file."""

    bits: Bits | None
    unfit: str = ""
    """The reason why an existing file can't be used."""


class SoleWriter(NamedTuple):
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


def filter_bits(node: Node, predicate: Callable[..., object], name: str, index: "str | os.PathLike[str]") -> Bits:
    """Return a bit for each element of a node, in the order of epoch 0: the predicate's result, loaded or computed.

    Args:
        node: a dataset with positions and an end, and with the same elements in every epoch.
        predicate: a function of an element.
        name: of the step.
        index: the path of the file, which is written if it is missing or belongs to another dataset or predicate.

    Raises:
        UsageError: the file is of another kind, or can't be written.
        GraphError: the dataset isn't as described.
    """
    length = need_finite(node, "filter(index=…)")
    path = _path(index)
    _need_lasting_elements(node)
    # The bits choose positions in this order, so it must be the same in every epoch.
    step = Filter(hold_order(node), predicate, name)
    identity = _identity(step)
    found = read_index(path, identity, length)
    if found.bits is not None:
        return found.bits
    with sole_writer(path) as writer:
        found = read_index(path, identity, length)  # another process may have written it meanwhile
        if found.bits is not None:
            return found.bits
        _warn(path, found)
        bits = _compute(step, length)
        try:
            writer.write(identity, bits)
        except OSError as error:
            warnings.warn(
                f"index={path!r} can't be written ({error.strerror}), so the computed bits are not kept. Free some "
                "space, or name a file elsewhere.",
                stacklevel=4,  # the caller of Dataset.filter, which is a wrapper around the verb
            )
    return bits


def _path(index: "str | os.PathLike[str]") -> str:
    path = os.path.realpath(local_path(index, "index"))  # the rename replaces the file of a link, not the link
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # opening it may wait for ever
        raise UsageError(f"index={path!r} is a device, pipe or socket, and is not replaced. Name another file.")
    return path


def _need_lasting_elements(node: Node) -> None:
    """Check that each element is the same in every epoch.

    Raises:
        GraphError: a step has other elements in each epoch.
    """
    for step in walk(node):
        if isinstance(step, Map) and (step.form != "none" or isinstance(step.on_error, Substitute)):
            raise GraphError(
                f"filter(index=…) evaluates each element once for all epochs, and {chain_text(step)} has other "
                "elements in each epoch. Put the filter below that step, or leave index= out."
            )


def _identity(step: Filter) -> Fingerprint:
    """Return the identity of the bits: the dataset's fingerprint, with the identities of its sources and functions."""
    below, details = fingerprint(step.parent), all_details(step.parent)
    sources = source_identities(step.parent, "filter(index=…)", "leave index= out")
    more = [*argument_texts(step.parent), *sampler_texts(step.parent)]
    functions = [*function_identities(step), *details["source"], *details["order"], *more]
    return Fingerprint(_short([below.source, *sources]), below.order, _short(functions), "", {})


def _short(texts: Sequence[str]) -> str:
    return hashlib.blake2b(" ".join(texts).encode(), digest_size=8).hexdigest()


def _warn(path: str, found: Found) -> None:
    if found.unfit:
        warnings.warn(
            f"index={path!r} is computed again and replaced, since {found.unfit}. Where several datasets or predicates "
            "are in use, give each a file of its own.",
            stacklevel=5,
        )


def _compute(step: Filter, length: int) -> Bits:
    """Return the predicate's result for each element, computed on one thread for each processor."""
    packed = np.zeros(-(-length // 8), np.uint8)

    def make_task() -> Task[NDArray[np.int64]]:
        context = Context()  # one for each thread

        def kept(start: int, stop: int) -> NDArray[np.int64]:
            positions = np.arange(start, stop, dtype=np.int64)
            numbers = evaluate_block(step, np.zeros_like(positions), positions, context).kept
            return positions - start if numbers is None else numbers

        return kept

    results = scan(length, make_task, os.cpu_count() or 1)
    with (
        Progress(f"filter {step.name}", length, amount=counted) as progress,
        contextlib.closing(results),
    ):
        for start, stop, numbers in results:
            first = start // 8
            mask = np.zeros(stop - first * 8, np.bool_)
            mask[numbers + (start - first * 8)] = True
            packed[first : -(-stop // 8)] |= np.packbits(mask, bitorder="little")  # two ranges may share a byte
            progress.advance(stop - start)
    packed.flags.writeable = False
    return Bits(packed, length)


class Scanned(NamedTuple, Generic[Result]):
    """The results of the function for the positions [start, stop)."""

    start: int
    stop: int
    result: Result


def scan(total: int, make_task: Callable[[], Task[Result]], num_threads: int) -> Generator[Scanned[Result]]:
    """Yield a function's results for all ranges, in order.

    Args:
        total: how many positions there are.
        make_task: called once in each thread; returns the function of start and stop that is run there.
        num_threads: how many threads, at least 1.
    """
    ranges: _Ranges[Result] = _Ranges(total, num_threads)
    work = partial(_work, ranges, make_task)
    threads: list[DaemonThread] = []
    try:
        threads += (DaemonThread(work, f"penstock-scan-{number}") for number in range(num_threads))
        while (taken := ranges.take()) is not None:
            yield taken
    finally:
        ranges.stop()
        _join(threads)


def _join(threads: list[DaemonThread]) -> None:
    deadline = time.monotonic() + FUNCTION_SECONDS
    stuck = [thread.name for thread in threads if not thread.wait(max(deadline - time.monotonic(), 0))]
    if stuck:
        _logger.warning("still inside a function of the dataset after %s s: %s", FUNCTION_SECONDS, stuck)


def _work(ranges: "_Ranges[Result]", make_task: Callable[[], Task[Result]]) -> None:
    task: Task[Result] | None = None
    while (claimed := ranges.claim()) is not None:
        began = time.perf_counter()
        with claimed:
            task = task or make_task()
            result = task(claimed.start, claimed.stop)
            claimed.scanned = Scanned(claimed.start, claimed.stop, result)
            del result
        ranges.finish(claimed, time.perf_counter() - began)
        del claimed  # holds nothing while waiting


@dataclass(slots=True, eq=False, repr=False)
class _Range(Generic[Result]):
    """A range, and its result or exception: a `with` block over it keeps the exception that is raised inside."""

    start: int
    stop: int
    scanned: Scanned[Result] | None = None
    error: BaseException | None = None
    is_finished: bool = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.error = error
        return True


class _Ranges(Generic[Result]):
    """The ranges that are being computed or wait to be taken."""

    def __init__(self, total: int, num_threads: int) -> None:
        self._total = total
        self._threads = num_threads
        self._finished = Bell()
        self._changed = threading.Condition()  # protects all below
        self._ranges: deque[_Range[Result]] = deque()
        self._next = 0
        self._size = 1
        self._stopped = False

    def claim(self) -> _Range[Result] | None:
        """Return the next range once there is room for it; None when there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or len(self._ranges) < _RANGES_PER_THREAD * self._threads)
            if self._is_over():
                return None
            share = (self._total - self._next) // (2 * self._threads)
            most = min(self._total - self._next, _MAX_POSITIONS)
            stop = self._next + decide(RANGE_POSITIONS, max(min(self._size, share), 1), most)
            claimed: _Range[Result] = _Range(self._next, stop)
            self._next = stop
            self._ranges.append(claimed)
            return claimed

    def finish(self, claimed: _Range[Result], seconds: float) -> None:
        """Mark a range as finished."""
        with self._changed:
            claimed.is_finished = True
            if claimed.error is not None:
                self._stopped = True
            fitting = int((claimed.stop - claimed.start) * _RANGE_SECONDS / max(seconds, 1e-9))
            self._size = max(min(fitting, 2 * self._size, _MAX_POSITIONS), 1)
            self._changed.notify_all()
        self._finished.ring()

    def take(self) -> Scanned[Result] | None:
        """Return the next result once it is there, or raise its exception; None at the end."""
        taken: list[_Range[Result]] = []
        self._finished.clear()
        while not self._takes(taken):
            self._finished.wait()
            self._finished.clear()
        if not taken:
            return None
        if taken[0].error is not None:
            raise taken[0].error
        return taken[0].scanned

    @uninterrupted
    def _takes(self, taken: list[_Range[Result]]) -> bool:
        """Return whether the next range is finished, and taken, or there is none."""
        with self._changed:
            ready = self._can_take()
            if ready and self._ranges:
                taken.append(self._ranges.popleft())
                self._changed.notify_all()
            return ready

    @uninterrupted
    def stop(self) -> None:
        """Let no further range begin."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._stopped or self._next >= self._total

    def _can_take(self) -> bool:
        return self._ranges[0].is_finished if self._ranges else self._is_over()


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
        with open(path, "rb") as stream:
            begin = stream.read(len(_MAGIC))
        if begin != _MAGIC:
            if _MAGIC.startswith(begin):  # the system lost power before it had written the file
                return Found(None, "it is damaged")
            raise UsageError(
                f"index={path!r} is a file of another kind, and is not overwritten. Name another file, or remove this "
                "one."
            )
        content = map_file(path)
    except FileNotFoundError:
        return Found(None)
    except OSError as error:
        raise UsageError(
            f"index={path!r} can't be read: {error.strerror}. Name a file, or one that doesn't exist yet."
        ) from error
    size = len(content) - _CHECK_BYTES
    if size < _HEAD.size or _digest(content[:size].data) != bytes(content[size:]):
        return Found(None, "it is damaged")
    _, version, elements, kept, source, order, functions = _HEAD.unpack(bytes(content[: _HEAD.size]))
    if version != _VERSION:
        return Found(None, f"it is of version {version} of the format, and this is version {_VERSION}")
    known = Fingerprint(source.hex(), order.hex(), functions.hex(), "", {})
    differing = [part for part in ("source", "order", "functions") if getattr(known, part) != getattr(identity, part)]
    if differing or elements != length:
        what = " and ".join(differing) or "length"
        return Found(None, f"it was made for a dataset or predicate with another {what}")
    bits = Bits(content[_HEAD.size : size], length)
    return Found(bits) if len(bits) == kept else Found(None, "it is damaged")


def _digest(data: memoryview | bytes | bytearray) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


@contextlib.contextmanager
def sole_writer(path: str) -> Generator[SoleWriter]:
    """Hold the right to write a file while the block runs; other processes wait.

    Args:
        path: of the file.

    Yields:
        The right to write; if it isn't used, no file is left.

    Raises:
        UsageError: no file can be written in that directory.
    """
    try:
        temporary, descriptor = _open_locked(path)
    except OSError as error:
        raise UsageError(
            f"index={path!r} can't be written: {error.strerror}. Name a file in a directory that exists and that you "
            "may write to."
        ) from error
    with open(descriptor, "wb") as stream:
        try:
            yield SoleWriter(path, temporary, stream)
        finally:
            # After a rename the temporary name is gone, or is another process's file.
            with contextlib.suppress(OSError):
                if stream.closed or _is_named(descriptor, temporary):
                    os.unlink(temporary)
            if not stream.closed:
                _unlock(descriptor)


def _open_locked(path: str) -> tuple[str, int]:
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

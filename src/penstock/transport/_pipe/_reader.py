"""The reading end of a pipe, and its connection to each writer.

Guarantees:
  - The elements of a writer are received in the order in which it sent them, each once; several writers take turns.
  - Everything that a writer sent is received, however the writer ended. After that, a failed writer raises its error
    once, and a dead one a PeerError, within milliseconds even during a wait. When every writer has ended, the pipe has.
  - Arrays are views of shared memory, which is written again only after the last view was dropped.
  - The reader trusts no other process: a malformed message raises a MessageError, and closes the connection to that
    writer. Nothing is unpickled without `allow_pickle`.

Any thread may call any method; `areceive` and `async for` are for the coroutines of one event loop.
"""

import contextlib
import gc
import io
import os
import select
import socket
import sys
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Final, Self, cast

from penstock._memory import ALIGNMENT, Lease
from penstock._os import has_ended, watch_process
from penstock._tree import Element
from penstock.errors import ClosedError, EndOfPipeError, MessageError, PeerError, UsageError
from penstock.transport._arena import AttachedArena, SlotPlace
from penstock.transport._encoding import Decoder, DevicePlace, ReaderSlot
from penstock.transport._pipe._operations import Operations, Steps
from penstock.transport._pipe._socket import (
    Frame,
    Inbox,
    Kind,
    Message,
    Starved,
    absolute,
    close_all,
    listen,
    new_address,
    pack_failure,
    packets,
    parse_device_slot,
    parse_hello,
    parse_message,
    parse_region,
    parse_starved,
    peer_pid,
    remove_file,
    require_same_user,
    unpack_failure,
)

_USUALLY_KEPT: Final = 2  # elements: the current one, and the one before it


class TensorPipeReader:
    """Receives the elements that writers send; a context manager, and an iterator until every writer has ended.

    Large arrays and `Bytes` are views of shared memory, which the writer uses again once the last view is dropped.
    Leaves of up to 64 kB, and all leaves with `copy=True`, are private copies. Arrays are writable, a `Bytes` isn't. A
    consumer that keeps many elements keeps the writer's memory, which then grows, with one warning, up to its
    `max_bytes`.

    Args:
        address: the address for writers: None generates one; a path creates a socket file, `@name` is an abstract
            address.
        num_writers: the number of writers. The pipe ends when that many have ended; with None it never ends.
        allow_pickle: whether to unpickle pickled leaves, and to open CUDA tensors. Only if you trust every writer.
        copy: whether every array is a private copy.

    Raises:
        UsageError: an argument is wrong, or this system is not Linux.

    Example:
        >>> import threading
        >>> import numpy as np
        >>> from penstock.transport import TensorPipeReader, TensorPipeWriter
        >>> def count(address):
        ...     with TensorPipeWriter(address) as writer:
        ...         for step in range(3):
        ...             writer.send({"x": np.full(100_000, step)})
        >>> with TensorPipeReader() as reader:
        ...     worker = threading.Thread(target=count, args=(reader.address,))  # usually a process
        ...     worker.start()
        ...     [int(element["x"].sum()) for element in reader]
        ...     worker.join()
        [0, 100000, 200000]
    """

    _keeps_unreadable = False

    def __init__(
        self,
        address: str | None = None,
        *,
        num_writers: int | None = 1,
        allow_pickle: bool = False,
        copy: bool = False,
    ) -> None:
        if num_writers is not None and num_writers < 1:
            raise UsageError(f"num_writers must be at least 1, or None for any number; got {num_writers!r}")
        self._address = new_address() if address is None else absolute(address)
        self._num_writers = num_writers
        self._allow_pickle = allow_pickle
        self._copy = copy
        self._connections: dict[int, Connection] = {}
        self._ready: deque[Connection] = deque()
        self._accepted = self._ended = self._messages = 0
        self._writer_pids: set[int] = set()  # pids of the writers so far
        self._expected_processes: dict[int, tuple[io.FileIO, int]] = {}  # processes of `expect`, by descriptor
        self._missing: list[int] = []  # processes of `expect` that have ended
        self._last: Connection | None = None
        self._warned = False
        self._final_frame = Frame(Kind.CLOSED, b"")
        self._put_back: deque[Element] = deque()  # elements that could not be returned because of a Ctrl-C
        self._listening = listen(self._address)
        try:
            self._operations = Operations("this TensorPipeReader", self._dispose, put_back=self._put_back.append)
            self._operations.watch(self._listening.fileno())
        except BaseException:
            self._dispose()
            raise

    @property
    def address(self) -> str:
        """The address of this reader, for the `TensorPipeWriter` of other processes."""
        return self._address

    @property
    def messages(self) -> int:
        """The number of elements received."""
        return self._messages

    def expect(self, pid: int) -> None:
        """Make `receive` raise a PeerError if a process ends before it opens a writer.

        Without this, `receive` waits for ever for a process that fails before it opens its `TensorPipeWriter`.

        Args:
            pid: the process that will open a writer, such as the `pid` of one that you started.

        Raises:
            ClosedError: this end is closed.

        Example:
            >>> import subprocess, sys
            >>> from penstock.transport import TensorPipeReader
            >>> with TensorPipeReader() as reader:
            ...     process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
            ...     reader.expect(process.pid)
            ...     try:
            ...         reader.receive()
            ...     except ConnectionError as error:
            ...         print(str(error).replace(str(process.pid), "7"))
            ...     process.wait()
            process 7 ended before it opened a TensorPipeWriter; see its own output for the reason
            1
        """
        if self._operations.closed:
            raise ClosedError("this TensorPipeReader is closed. Open another one.")
        process = watch_process(pid)
        if process is None:
            self._missing.append(pid)
        else:
            self._expected_processes[process.fileno()] = process, pid
            self._operations.watch(process.fileno())

    def receive(self, *, timeout_seconds: float | None = None) -> Element:
        """Return the next element; wait for it.

        Args:
            timeout_seconds: the longest wait; None for no limit.

        Returns:
            The element as the writer sent it, with the same containers, dtypes and shapes.

        Raises:
            EndOfPipeError: every writer has ended.
            PeerError: a writer failed or died, or a process of `expect` ended before it opened a writer. The next
                calls still receive from the other writers.
            MessageError: a writer sent a message that can't be read here.
            UsageError: a writer waits for memory, and arrays received here keep all of its `max_bytes`.
            ClosedError: this end is closed.
            TimeoutError: no element arrived in time.

        Example:
            >>> from penstock.transport import TensorPipeReader, TensorPipeWriter
            >>> with TensorPipeReader() as reader:
            ...     with TensorPipeWriter(reader.address) as writer:
            ...         writer.send("hello")
            ...     reader.receive()
            ...     try:
            ...         reader.receive()
            ...     except EOFError as error:
            ...         print(error)
            'hello'
            every writer has ended: 1 of 1
        """
        return self._operations.run(self._receiving(), timeout_seconds)

    async def areceive(self) -> Element:
        """Receive as `receive` does, from a coroutine; it doesn't block the event loop.

        Returns:
            The element.

        Raises:
            EndOfPipeError: as for `receive`.
            PeerError: as for `receive`.
            MessageError: as for `receive`.
            UsageError: as for `receive`.
            ClosedError: as for `receive`.
        """
        return await self._operations.run_async(self._receiving())

    def __iter__(self) -> Iterator[Element]:
        with contextlib.suppress(EndOfPipeError):
            while True:
                yield self.receive()

    async def __aiter__(self) -> AsyncIterator[Element]:
        with contextlib.suppress(EndOfPipeError):
            while True:
                yield await self.areceive()

    def close(self) -> None:
        """Close, and notify the writers; received arrays stay valid. Harmless when repeated."""
        self._operations.close()

    def fail(self, error: BaseException) -> None:
        """Close with a failure: the next `send` of each writer raises the error.

        Args:
            error: sent as type, message and traceback; with `allow_pickle` at both ends, writers raise the exception
                itself.
        """
        self._final_frame = Frame(Kind.FAILED, pack_failure(error, allow_pickle=self._allow_pickle))
        self._operations.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            self.close()
        else:
            self.fail(error)

    def __del__(self) -> None:
        operations = getattr(self, "_operations", None)
        if operations is not None and not operations.closed and operations.mine:
            warnings.warn(
                "a TensorPipeReader was dropped without close(); use `with`", ResourceWarning, stacklevel=2, source=self
            )

    def __repr__(self) -> str:
        return f"TensorPipeReader({self._address!r}, {self._messages} messages received)"

    def _receiving(self) -> Steps[Element]:
        self._warn_about_kept_elements()  # first, so that no element is lost if warnings are errors
        if self._put_back:
            return self._put_back.popleft()
        while True:
            self._handle_ready()
            while self._ready:
                connection = self._ready.popleft()
                try:
                    element = connection.next()
                except BlockingIOError:
                    continue
                finally:
                    if connection.ended:
                        self._remove(connection)
                    else:
                        self._watch(connection)
                if element is not _NOTHING:
                    self._ready.append(connection)
                    self._last = connection
                    self._messages += 1
                    return element
            self._raise_for_missing_writer()
            if self._num_writers is not None and self._ended >= self._num_writers:
                raise EndOfPipeError(f"every writer has ended: {self._ended} of {self._num_writers}")
            self._raise_for_kept_memory()
            yield

    def _handle_ready(self) -> None:
        for descriptor in self._operations.ready():
            if descriptor == self._listening.fileno():
                self._accept()
            elif descriptor in self._expected_processes:
                self._operations.forget(descriptor)
                process, pid = self._expected_processes.pop(descriptor)
                process.close()
                self._missing.append(pid)  # first, since `_accept` may raise
                self._accept()  # it may have connected before it ended
            elif descriptor in self._connections and self._connections[descriptor] not in self._ready:
                self._ready.append(self._connections[descriptor])

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"this reader can't accept another writer ({error.strerror}); raise the limit (ulimit -n), or "
                    "close files",
                ) from error
            connection = Connection(
                connected,
                allow_pickle=self._allow_pickle,
                copy=self._copy,
                keeps_unreadable=self._keeps_unreadable,
                max_kept=self._max_kept(),
            )
            if self._num_writers is not None and self._accepted >= self._num_writers:
                refusal = (
                    f"the reader has num_writers={self._num_writers}, and as many have connected; raise num_writers"
                )
                connection.close(Frame(Kind.REJECTED, refusal.encode()))
                continue
            self._accepted += 1
            self._writer_pids.add(connection.pid)
            self._watch(connection)
            self._ready.append(connection)

    def _raise_for_missing_writer(self) -> None:
        """Raise for a process of `expect` that ended before it opened a writer.

        Raises:
            PeerError: there is one.
        """
        while self._missing:
            pid = self._missing.pop(0)
            if pid not in self._writer_pids:
                self._accepted += 1
                self._ended += 1
                raise PeerError(
                    f"process {pid} ended before it opened a TensorPipeWriter; see its own output for the reason",
                    pid=pid,
                )

    def _watch(self, connection: "Connection") -> None:
        for descriptor in connection.descriptors:
            if descriptor not in self._connections:
                self._operations.watch(descriptor)
                self._connections[descriptor] = connection

    def _remove(self, connection: "Connection") -> None:
        for descriptor in connection.descriptors:
            if self._connections.pop(descriptor, None) is not None:
                self._operations.forget(descriptor)
        connection.close(Frame(Kind.CLOSED, b""))
        self._ended += 1

    def _warn_about_kept_elements(self) -> None:
        if self._warned or self._last is None or self._last.ended:
            return
        kept = self._last.held - self._last.capacity  # only that of the last writer can have grown
        if kept <= _USUALLY_KEPT:
            return
        self._warned = True
        warnings.warn(
            f"{kept} received elements are still referenced, so the writer uses more memory for new ones. Keep fewer, "
            "or keep copies, which a TensorPipeReader(copy=True) returns.",
            stacklevel=9,
        )

    def _raise_for_kept_memory(self) -> None:
        """Raise for a writer that waits for memory that only this process keeps.

        Raises:
            UsageError: there is one.
        """
        for connection in self._connections.values():
            needed = connection.kept_from_writer()
            if needed:
                raise UsageError(
                    f"{connection.held} received elements that are still referenced here use all of a writer's "
                    f"max_bytes, and it needs {needed} bytes for the next. Keep fewer, use "
                    "TensorPipeReader(copy=True), which returns copies, or raise the writer's max_bytes."
                )

    def _dispose(self) -> None:
        self._accept_last()
        for connection in set(self._connections.values()):
            connection.close(self._final_frame)
        self._connections.clear()
        for process, _ in self._expected_processes.values():
            process.close()
        self._expected_processes.clear()
        self._ready.clear()
        self._last = None
        self._put_back.clear()
        self._listening.close()
        remove_file(self._address)

    def _max_kept(self) -> int:
        """Return the number of messages whose memory may be kept here; beyond it all leaves are copies."""
        return sys.maxsize

    def _accept_last(self) -> None:
        """Send the last frame to writers that were not accepted yet, too."""
        with contextlib.suppress(OSError, PeerError, MessageError):
            while True:
                connected, _ = self._listening.accept()
                connection = Connection(connected, allow_pickle=False, copy=False)
                connection.close(self._final_frame)


_NOTHING: Final = object()  # `Connection.next` returns it at the end; None would be an element


class Connection:
    """The reader's connection to one writer: it parses the writer's frames, and adopts the memory of its messages.

    Attributes:
        descriptors: the descriptors to watch: the socket, and the writer's process once its hello has arrived.
        ended: whether the writer sent its end or failure, or the connection is broken; then nothing more arrives.
        pid: the writer's process.
        capacity: the most elements that the writer sends ahead; 0 before its hello.
    """

    def __init__(
        self,
        connected: socket.socket,
        *,
        allow_pickle: bool,
        copy: bool,
        keeps_unreadable: bool = False,
        max_kept: int = sys.maxsize,
    ) -> None:
        self.descriptors = [connected.fileno()]
        self.ended = False
        self.capacity = 0
        self._socket = connected
        self._inbox = Inbox(connected)
        self._decoder = Decoder(allow_pickle=allow_pickle, keeps_unreadable=keeps_unreadable)
        self._allow_pickle = allow_pickle
        self._copy = copy
        self._max_kept = max_kept
        self._starved: Starved | None = None
        self._arena: AttachedArena | None = None
        self._device_slots: dict[int, ReaderSlot] = {}  # by the arena slots of their tickets
        self._has_references = False  # whether a message has arrived with leaves by reference
        self._slots_each = 1  # slots of the last message that had any
        self._process: io.FileIO | None = None
        self.pid = peer_pid(connected)
        connected.settimeout(0)

    @property
    def has_unreadable(self) -> bool:
        """Whether a message had a leaf that can't be rebuilt, if such leaves are kept as `Unreadable`."""
        return self._decoder.has_unreadable

    @property
    def held(self) -> int:
        """The number of messages on their way or kept here, as if each had as many slots as the last one."""
        return self.slots // self._slots_each

    @property
    def slots(self) -> int:
        """The number of the writer's slots that are on their way or kept here."""
        return 0 if self._arena is None else self._arena.held

    @property
    def keeps_referred(self) -> bool:
        """Whether slots are kept here, and any message has had leaves by reference."""
        return self._has_references and self.slots > 0

    def kept_from_writer(self) -> int:
        """Return the number of bytes that the writer waits for, if only this process keeps its memory; else 0."""
        if self._starved is None or self._arena is None:
            return 0
        gc.collect()  # drops arrays that only a reference cycle keeps
        stuck = self._arena.returned == self._starved.returned and self._arena.held > 0
        return self._starved.needed_bytes if stuck else 0

    def next(self) -> object:
        """Return the next element, or _NOTHING at the end.

        Raises:
            BlockingIOError: there is none yet.
            PeerError: the writer failed or died.
            MessageError: the frame is malformed, or may not be read here.
            OSError: no descriptor is left for those that came with it.
            MemoryError: no memory is left for it.
        """
        try:
            while True:
                frame = self._receive()
                try:
                    if frame.kind is Kind.MESSAGE:
                        return self._element(parse_message(frame))
                    if frame.kind is Kind.END and self._arena is not None:  # an END before the hello is refused
                        self.ended = True
                        return _NOTHING
                    self._handle(frame)
                finally:
                    close_all(frame.descriptors)
        except BlockingIOError:
            raise
        except (MessageError, OSError, MemoryError) as error:
            self.ended = True
            self._send_quietly(Frame(Kind.REJECTED, str(error).encode()[:4096]))
            error.add_note(f"It came from process {self.pid}; this reader has closed the connection to it.")
            raise

    def close(self, final_frame: Frame) -> None:
        """Send a last frame, return the holds of messages that were never received, and close."""
        self._send_quietly(final_frame)
        self._return_unread()
        self._socket.close()
        if self._process is not None:
            self._process.close()
        if self._arena is not None:
            self._arena.close()

    def _receive(self) -> Frame:
        try:
            frame = self._inbox.receive()
        except BlockingIOError:
            # The writer's process may have ended while a child of it keeps the socket open.
            if self._process is None or not has_ended(self._process):
                raise
            try:
                frame = self._inbox.receive()  # a frame that was sent between the first read and the end
            except BlockingIOError:
                frame = None
        if frame is None:
            self.ended = True
            raise PeerError(
                f"a writer (process {self.pid}) died, or closed its socket, without an end or a failure. Everything "
                "that it had sent was received.",
                pid=self.pid,
            )
        return frame

    def _handle(self, frame: Frame) -> None:
        if self._arena is None:
            self._arena = self._welcome(frame)
        elif frame.kind is Kind.REGION:
            self._arena.add_region(parse_region(frame), frame.descriptors[0])
        elif frame.kind is Kind.DEVICE_SLOT:
            self._handle_device_slot(*parse_device_slot(frame))
        elif frame.kind is Kind.LAYOUT:
            self._decoder.learn(frame.body)
        elif frame.kind is Kind.STARVED:
            self._starved = parse_starved(frame)
        elif frame.kind is Kind.FAILED:
            self.ended = True
            raise unpack_failure(frame.body, peer="a writer", pid=self.pid, allow_pickle=self._allow_pickle)
        else:
            raise MessageError(f"a writer can't send {frame.kind.name} here")

    def _handle_device_slot(self, number: int, shared: bytes) -> None:
        if not shared:
            self._device_slots.pop(number, None)
        elif number in self._device_slots:
            raise MessageError(f"each device slot must be sent once; slot {number} was sent before")
        else:
            self._device_slots[number] = ReaderSlot(shared)

    def _welcome(self, frame: Frame) -> AttachedArena:
        hello = parse_hello(frame)
        try:
            require_same_user(self._socket)
        except PeerError as error:
            raise MessageError(str(error)) from error
        table, bell, process = frame.descriptors
        with select.epoll() as probe:
            try:
                probe.register(process, select.EPOLLIN)
            except OSError as error:
                raise MessageError(
                    f"a writer's hello must hold the descriptor of its process ({error.strerror})"
                ) from error
        arena = AttachedArena(table, bell, hello.participant)
        self._process = io.FileIO(os.dup(process))
        self.descriptors.append(self._process.fileno())
        self.capacity = hello.capacity
        return arena

    def _element(self, message: Message) -> object:
        arena = self._arena
        if arena is None:
            raise MessageError("a writer must send its hello before a message")
        memory: object = message.memory
        places: list[object] = []
        if message.places:
            *places, memory = _adopted(arena, message)
            places = [
                part if place.slot not in self._device_slots else DevicePlace(self._device_slots[place.slot], part)
                for place, part in zip(message.places, places, strict=True)
            ]
            self._has_references = True
            self._slots_each = len({place.slot for place in _places(message)})
        elif isinstance(message.memory, SlotPlace):
            memory = arena.adopt(message.memory)
            self._slots_each = 1
        arena.acknowledge()
        self._starved = None
        copy = self._copy or self.held - self.capacity > self._max_kept
        return self._decoder.decode(message.head, memory, places, copy=copy)

    def _send_quietly(self, frame: Frame) -> None:
        with contextlib.suppress(OSError):  # it has ended, or its socket is full
            for packet, _ in packets(frame):
                self._socket.send(packet)

    def _return_unread(self) -> None:
        with contextlib.suppress(OSError, MessageError, MemoryError):  # the writer has ended, or sent malformed frames
            self._socket.shutdown(socket.SHUT_RD)  # nothing more arrives; frames that have arrived can still be read
            while (frame := self._inbox.receive()) is not None:
                try:
                    if self._arena is None:
                        self._arena = self._welcome(frame)
                    elif frame.kind is Kind.MESSAGE:
                        for slot in _extents(parse_message(frame)):
                            self._arena.drop(slot)
                        self._arena.acknowledge()
                finally:
                    close_all(frame.descriptors)


def _places(message: Message) -> list[SlotPlace]:
    memory = message.memory
    return [*message.places, memory] if isinstance(memory, SlotPlace) else list(message.places)


def _extents(message: Message) -> dict[int, SlotPlace]:
    """Return, for each slot of a message, the smallest aligned place that contains all of the message's places in it.

    Returns:
        The places, by slot.

    Raises:
        MessageError: two places put one slot into two regions.
    """
    extents: dict[int, SlotPlace] = {}
    for place in _places(message):
        known = extents.get(place.slot, place)
        if known.region != place.region:
            raise MessageError(f"slot {place.slot} can't be in two regions, {known.region} and {place.region}")
        start = min(known.start_bytes, place.start_bytes // ALIGNMENT * ALIGNMENT)
        end = max(known.start_bytes + known.size_bytes, place.start_bytes + place.size_bytes)
        extents[place.slot] = SlotPlace(place.slot, place.region, start, end - start)
    return extents


def _adopted(arena: AttachedArena, message: Message) -> list[object]:
    """Adopt each slot of a message by one lease.

    Returns:
        The message's places, as buffers, followed by its memory.
    """
    extents = _extents(message)
    leases = {slot: arena.adopt(extent) for slot, extent in extents.items()}
    parts: list[object] = [
        _part_of(leases[place.slot], place, extents[place.slot].start_bytes) for place in _places(message)
    ]
    return parts if isinstance(message.memory, SlotPlace) else [*parts, message.memory]


def _part_of(lease: Lease, place: SlotPlace, start_bytes: int) -> object:
    """Return the part of a lease at a place; it keeps the lease alive."""
    start = place.start_bytes - start_bytes
    if start == 0 and place.size_bytes == len(lease):
        return lease
    return memoryview(cast("bytes", lease))[start : start + place.size_bytes]  # any object with the buffer protocol

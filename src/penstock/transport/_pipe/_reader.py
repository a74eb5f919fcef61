"""The reading end of a pipe.

Guarantees:
  - The elements of a writer come in the order in which it sent them, each once; those of several writers as they
    arrive, taking turns.
  - What a writer sent is received, however it ended. Then: every writer's end is the end; a failure raises, once for
    each writer that failed; a death raises a PeerError within milliseconds, also while waiting.
  - Arrays are views of shared memory. It is written again when the last view was dropped, and not before.
  - What other processes send is not trusted: what is no message raises a MessageError, and that writer is heard no
    longer. Nothing is unpickled unless `allow_pickle` says so.

Any thread may call any method; `areceive` and `async for` are for the coroutines of one event loop.
"""

import contextlib
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock._processes._pidfd import watch_process
from penstock._tree import Element
from penstock.errors import ClosedError, EndOfPipeError, MessageError, PeerError, UsageError
from penstock.transport._pipe._address import absolute, forget, listen, new_address
from penstock.transport._pipe._connection import NOTHING, Connection
from penstock.transport._pipe._failure import pack_failure
from penstock.transport._pipe._frames import Frame, Kind
from penstock.transport._pipe._operations import Operations, Steps

if TYPE_CHECKING:
    import io

_USUALLY_KEPT: Final = 2  # elements: the one that is worked on, and the one before it


class TensorPipeReader:
    """Receives the nested elements that writers send; a context manager, and an iterator until every writer ended.

    Large arrays and `Bytes` come as views of shared memory, which the writer uses again once the last view is dropped;
    leaves of up to 64 kB, and all leaves with `copy=True`, come as memory of their own. Arrays can be written to, a
    `Bytes` can't. Keeping many elements keeps the writer's memory, which grows then, with one warning, up to its
    `max_bytes`.

    Args:
        address: where writers reach it: None makes an address; a path makes a socket file, `@name` an abstract one.
        num_writers: how many writers there will be. The end is reached when so many have ended; None for any number
            and no end.
        allow_pickle: whether what was pickled is unpickled, and CUDA tensors are opened. Only where every writer is
            trusted.
        copy: whether every array comes as memory of its own.

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
        ...     worker = threading.Thread(target=count, args=(reader.address,))  # or a process, which is what it is for
        ...     worker.start()
        ...     [int(element["x"].sum()) for element in reader]
        ...     worker.join()
        [0, 100000, 200000]
    """

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
        self._expected = num_writers
        self._allow_pickle = allow_pickle
        self._copy = copy
        self._connections: dict[int, Connection] = {}
        self._ready: deque[Connection] = deque()
        self._accepted = self._ended = self._messages = 0
        self._seen: set[int] = set()  # processes that became writers
        self._awaited: dict[int, tuple[io.FileIO, int]] = {}  # those that are to become writers, by descriptor
        self._missing: list[int] = []  # those that ended before they did
        self._last: Connection | None = None
        self._warned = False
        self._last_word = Frame(Kind.CLOSED, b"")
        self._put_back: deque[Element] = deque()  # what Ctrl-C kept from being returned
        self._listening = listen(self._address)
        try:
            self._operations = Operations("this TensorPipeReader", self._dispose, put_back=self._put_back.append)
            self._operations.watch(self._listening.fileno())
        except BaseException:
            self._dispose()
            raise

    @property
    def address(self) -> str:
        """Where a `TensorPipeWriter` reaches this reader: to be given to other processes."""
        return self._address

    @property
    def messages(self) -> int:
        """How many elements were received."""
        return self._messages

    def expect(self, pid: int) -> None:
        """Have `receive` raise a PeerError if a process ends that never became a writer.

        A process that fails before it opens its `TensorPipeWriter` can't say so, and would be waited for for ever.

        Args:
            pid: the process that is to open a writer, such as `process.pid` of one that was started.

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
            process 7 ended before it became a writer; its own output says why
            1
        """
        if self._operations.closed:
            raise ClosedError("this TensorPipeReader is closed. Open another one.")
        process = watch_process(pid)
        if process is None:
            self._missing.append(pid)
        else:
            self._awaited[process.fileno()] = process, pid
            self._operations.watch(process.fileno())

    def receive(self, *, timeout_seconds: float | None = None) -> Element:
        """Return the next element; wait for it.

        Args:
            timeout_seconds: how long to wait at most; None for as long as it takes.

        Returns:
            The element: what the writer sent, with containers, dtypes and shapes as they were.

        Raises:
            EndOfPipeError: every writer has ended.
            PeerError: a writer failed or died, or a process that `expect` was told of ended before it became one. The
                others are still received by the next calls.
            MessageError: a writer sent what can't be read here.
            UsageError: a writer can't go on, since its `max_bytes` are all kept by arrays received here.
            ClosedError: this end is closed.
            TimeoutError: nothing came for so long.

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
        """Do what `receive` does, from a coroutine, which waits without blocking its event loop.

        Returns:
            The element.

        Raises:
            EndOfPipeError: as `receive`.
            PeerError: as `receive`.
            MessageError: as `receive`.
            UsageError: as `receive`.
            ClosedError: as `receive`.
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
        """Tell the writers, and close; arrays that were received stay valid. Harmless when repeated."""
        self._operations.close()

    def fail(self, error: BaseException) -> None:
        """Tell the writers that this end failed, and close: their next `send` raises the error.

        Args:
            error: told by its type, message and traceback; with `allow_pickle` at both ends, writers raise the
                exception itself.
        """
        self._last_word = Frame(Kind.FAILED, pack_failure(error, allow_pickle=self._allow_pickle))
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
        self._warn_of_kept()  # here, where nothing is lost if warnings are errors
        if self._put_back:
            return self._put_back.popleft()
        while True:
            self._look()
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
                if element is not NOTHING:
                    self._ready.append(connection)
                    self._last = connection
                    self._messages += 1
                    return element
            self._find_who_is_missing()
            if self._expected is not None and self._ended >= self._expected:
                raise EndOfPipeError(f"every writer has ended: {self._ended} of {self._expected}")
            self._find_what_is_kept()
            yield

    def _look(self) -> None:
        for descriptor in self._operations.ready():
            if descriptor == self._listening.fileno():
                self._accept()
            elif descriptor in self._awaited:
                self._operations.forget(descriptor)
                process, pid = self._awaited.pop(descriptor)
                process.close()
                self._accept()  # it may have come in before it ended
                self._missing.append(pid)
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
                    f"this reader can't let another writer in ({error.strerror}); raise the limit (ulimit -n), or "
                    "close what is open",
                ) from error
            connection = Connection(connected, allow_pickle=self._allow_pickle, copy=self._copy)
            if self._expected is not None and self._accepted >= self._expected:
                refusal = f"the reader expects {self._expected} writers and has had as many; raise num_writers"
                connection.close(Frame(Kind.REJECTED, refusal.encode()))
                continue
            self._accepted += 1
            self._seen.add(connection.pid)
            self._watch(connection)
            self._ready.append(connection)

    def _find_who_is_missing(self) -> None:
        """Say it, if a process that was expected to become a writer has ended.

        Raises:
            PeerError: one has.
        """
        while self._missing:
            pid = self._missing.pop(0)
            if pid not in self._seen:
                self._accepted += 1
                self._ended += 1
                raise PeerError(f"process {pid} ended before it became a writer; its own output says why", pid=pid)

    def _watch(self, connection: Connection) -> None:
        for descriptor in connection.descriptors:
            if descriptor not in self._connections:
                self._operations.watch(descriptor)
                self._connections[descriptor] = connection

    def _remove(self, connection: Connection) -> None:
        for descriptor in connection.descriptors:
            if self._connections.pop(descriptor, None) is not None:
                self._operations.forget(descriptor)
        connection.close(Frame(Kind.CLOSED, b""))
        self._ended += 1

    def _warn_of_kept(self) -> None:
        if self._warned or self._last is None or self._last.ended:
            return
        kept = self._last.held - self._last.capacity  # it alone can have become more
        if kept <= _USUALLY_KEPT:
            return
        self._warned = True
        warnings.warn(
            f"{kept} received elements are kept, so the writer takes more memory for others. Keep fewer, or use "
            "TensorPipeReader(copy=True), which gives copies.",
            stacklevel=6,
        )

    def _find_what_is_kept(self) -> None:
        """Say it, if a writer waits for memory that nobody but this process keeps.

        Raises:
            UsageError: it does.
        """
        for connection in self._connections.values():
            needed = connection.kept_from_writer()
            if needed:
                raise UsageError(
                    f"a writer's max_bytes are all in use by {connection.held} received elements that are still "
                    f"referenced here, and it needs {needed} bytes for the next. Keep fewer, use "
                    "TensorPipeReader(copy=True), which gives copies, or raise the writer's max_bytes."
                )

    def _dispose(self) -> None:
        self._accept_last()
        for connection in set(self._connections.values()):
            connection.close(self._last_word)
        self._connections.clear()
        for process, _ in self._awaited.values():
            process.close()
        self._awaited.clear()
        self._ready.clear()
        self._last = None
        self._put_back.clear()
        self._listening.close()
        forget(self._address)

    def _accept_last(self) -> None:
        """Take those in that wait at the door, so that they are told, too."""
        with contextlib.suppress(OSError, PeerError, MessageError):
            while True:
                connected, _ = self._listening.accept()
                connection = Connection(connected, allow_pickle=False, copy=False)
                connection.close(self._last_word)

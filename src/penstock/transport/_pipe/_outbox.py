"""A writer's outgoing frames, and the end of its reader.

`post` queues a frame without waiting; `flush` sends packets in order, as far as the socket has room. A packet leaves
whole or not at all, so an interrupt between two packets does no harm. The reader's frames arrive on the same socket:
that it closed, failed, or rejects this writer. A reader that dies sends none; its socket and its pidfd show the end.
"""

import socket
from collections import deque
from collections.abc import Sequence

from penstock._processes import has_ended, watch_process
from penstock.errors import ClosedError, MessageError, PeerError
from penstock.transport._pipe._address import connect, peer_pid
from penstock.transport._pipe._failure import unpack_failure
from penstock.transport._pipe._frames import Frame, Inbox, Kind, close_all, packets


class Outbox:
    """One writer's connection to its reader; a resource.

    Attributes:
        descriptor: the socket's descriptor.
        process: the pidfd of the reader's process; None if the system gives none.
        pid: the reader's process.
    """

    __slots__ = (
        "_allow_pickle",
        "_error",
        "_inbox",
        "_message_packets",
        "_posted",
        "_socket",
        "descriptor",
        "pid",
        "process",
    )

    def __init__(self, address: str, *, allow_pickle: bool) -> None:
        self._socket = connect(address)
        self._inbox = Inbox(self._socket)
        self._allow_pickle = allow_pickle
        self._posted: deque[tuple[bytes, tuple[int, ...], Sequence[int]]] = deque()
        self._message_packets = 0  # packets of the last message
        self._error: Exception | None = None
        self.descriptor = self._socket.fileno()
        self.pid = peer_pid(self._socket)
        self.process = watch_process(self.pid)

    def post(self, frame: Frame, slots: Sequence[int] = ()) -> None:
        """Queue a frame. `slots` are the slots that are held on the reader's behalf for it."""
        *pieces, (packet, descriptors) = packets(frame)
        if frame.kind is Kind.MESSAGE:
            self._message_packets = 1 + len(pieces)
        for piece, no_descriptors in pieces:
            self._posted.append((piece, no_descriptors, ()))
        self._posted.append((packet, descriptors, slots))

    def flush(self) -> bool:
        """Send the queued packets, as far as the socket has room now.

        Returns:
            Whether all were sent.

        Raises:
            ClosedError: the reader closed the pipe.
            PeerError: the reader failed or died.
            MessageError: the reader rejected this writer.
        """
        while self._posted:
            packet, descriptors, _ = self._posted[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [packet], descriptors)
                else:
                    self._socket.send(packet)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self.check_reader()
                raise self._record(self._death_error()) from None
            self._posted.popleft()
        return True

    def check_reader(self) -> None:
        """Check that the reader still reads.

        Raises:
            ClosedError: the reader closed the pipe.
            PeerError: the reader failed or died.
            MessageError: the reader rejected this writer.
        """
        if self._error is not None:
            raise self._error
        try:
            frame = self._inbox.receive()
        except BlockingIOError:
            if self.process is not None and has_ended(self.process):
                raise self._record(self._death_error()) from None
            return
        if frame is None:
            raise self._record(self._death_error())
        close_all(frame.descriptors)
        raise self._record(self._error_of(frame))

    def withdraw(self) -> Sequence[int]:
        """Remove the message that was posted last, which is not sent whole; the reader won't receive it.

        Returns:
            The slots that are held on the reader's behalf for it.
        """
        slots = self._posted[-1][2]
        waiting = min(len(self._posted), self._message_packets)
        for _ in range(waiting):
            self._posted.pop()
        if waiting < self._message_packets:
            self.post(Frame(Kind.VOID, b""))
        return slots

    def close(self) -> None:
        """Close the socket; the reader still receives all that was sent."""
        self._socket.close()
        if self.process is not None:
            self.process.close()

    def _error_of(self, frame: Frame) -> Exception:
        if frame.kind is Kind.CLOSED:
            return ClosedError(f"the reader (process {self.pid}) closed the pipe; further elements would be lost")
        if frame.kind is Kind.FAILED:
            return unpack_failure(frame.body, peer="the reader", pid=self.pid, allow_pickle=self._allow_pickle)
        if frame.kind is Kind.REJECTED:
            return MessageError(f"the reader (process {self.pid}) refused: {frame.body.decode(errors='replace')}")
        return MessageError(f"a reader can't send {frame.kind.name}")

    def _death_error(self) -> PeerError:
        return PeerError(
            f"the reader (process {self.pid}) died, or closed its socket without a last frame", pid=self.pid
        )

    def _record(self, error: Exception) -> Exception:
        self._error = error
        return error

"""What a writer has to say to its reader, and what became of the reader.

Frames are posted without waiting and leave in order, a packet at a time, as the socket has room; a packet leaves whole
or not at all, so being interrupted between two does no harm. The reader's few words come back the same way: that it
closed, failed, or can't read this writer. A reader that dies says nothing; its socket and its process tell.
"""

import socket
from collections import deque
from collections.abc import Sequence

from penstock._processes._pidfd import has_ended, watch_process
from penstock.errors import ClosedError, MessageError, PeerError
from penstock.transport._pipe._address import connect, peer_pid
from penstock.transport._pipe._failure import unpack_failure
from penstock.transport._pipe._frames import Frame, Inbox, Kind, close_all, packets


class Outbox:
    """One writer's connection to its reader; a resource.

    Attributes:
        descriptor: of the socket.
        process: the reader's process, watched; None where the system doesn't tell of it.
        pid: the reader's process.
    """

    __slots__ = (
        "_allow_pickle",
        "_inbox",
        "_message_packets",
        "_posted",
        "_socket",
        "_verdict",
        "descriptor",
        "pid",
        "process",
    )

    def __init__(self, address: str, *, allow_pickle: bool) -> None:
        self._socket = connect(address)
        self._inbox = Inbox(self._socket)
        self._allow_pickle = allow_pickle
        self._posted: deque[tuple[bytes, tuple[int, ...], Sequence[int]]] = deque()
        self._message_packets = 0  # of the last message
        self._verdict: Exception | None = None
        self.descriptor = self._socket.fileno()
        self.pid = peer_pid(self._socket)
        self.process = watch_process(self.pid)

    def post(self, frame: Frame, slots: Sequence[int] = ()) -> None:
        """Put a frame behind those that wait; `slots` are held for the reader until it has it."""
        *pieces, (packet, descriptors) = packets(frame)
        if frame.kind is Kind.MESSAGE:
            self._message_packets = 1 + len(pieces)
        for piece, no_descriptors in pieces:
            self._posted.append((piece, no_descriptors, ()))
        self._posted.append((packet, descriptors, slots))

    def flush(self) -> bool:
        """Send what can be sent now.

        Returns:
            Whether that was everything.

        Raises:
            ClosedError: the reader closed the pipe.
            PeerError: it failed or died.
            MessageError: it refused this writer.
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
                self.look()
                raise self._decide(self._death()) from None
            self._posted.popleft()
        return True

    def look(self) -> None:
        """Raise what became of the reader, if it is there no longer.

        Raises:
            ClosedError: the reader closed the pipe.
            PeerError: it failed or died.
            MessageError: it refused this writer.
        """
        if self._verdict is not None:
            raise self._verdict
        try:
            frame = self._inbox.receive()
        except BlockingIOError:
            if self.process is not None and has_ended(self.process):
                raise self._decide(self._death()) from None
            return
        if frame is None:
            raise self._decide(self._death())
        close_all(frame.descriptors)
        raise self._decide(self._told(frame))

    def withdraw(self) -> Sequence[int]:
        """Forget the message that was posted last, of which something waits; the reader won't receive it.

        Returns:
            The slots that were held for the reader because of it.
        """
        slots = self._posted[-1][2]
        waiting = min(len(self._posted), self._message_packets)
        for _ in range(waiting):
            self._posted.pop()
        if waiting < self._message_packets:
            self.post(Frame(Kind.VOID, b""))
        return slots

    def close(self) -> None:
        """Close the socket; the reader still receives what was sent."""
        self._socket.close()
        if self.process is not None:
            self.process.close()

    def _told(self, frame: Frame) -> Exception:
        if frame.kind is Kind.CLOSED:
            return ClosedError(f"the reader (process {self.pid}) closed the pipe; what is sent now would be lost")
        if frame.kind is Kind.FAILED:
            return unpack_failure(frame.body, who="the reader", pid=self.pid, allow_pickle=self._allow_pickle)
        if frame.kind is Kind.REJECTED:
            return MessageError(f"the reader (process {self.pid}) refused: {frame.body.decode(errors='replace')}")
        return MessageError(f"a reader can't say {frame.kind.name}")

    def _death(self) -> PeerError:
        return PeerError(f"the reader (process {self.pid}) died, or closed its socket without a word", pid=self.pid)

    def _decide(self, verdict: Exception) -> Exception:
        self._verdict = verdict
        return verdict

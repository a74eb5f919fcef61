"""The tensor pipe: writers send elements, nested tensors, to one reader in any process.

Each writer has an arena of shared memory and a Unix socket to the reader. The socket carries small *frames*: the place
of a message in the arena, and its layout. The data itself stays in the arena, unless it is at most 64 kB.

The problem is to send a batch in microseconds, without a copy at the reader, between processes of which each may be
killed at any instruction, and to offer both blocking calls and coroutines. The parts:
  - `_frames`: the packets of the socket. The reader trusts none of them.
  - `_operations`: an operation that may wait is written once, as *steps*: a generator that yields where it would wait.
    A blocking call and a coroutine drive the same generator. Rejected: an event loop in a thread of its own (two
    switches of threads for each message), and two implementations of each operation.
  - `_sender`, `_outbox`: the steps of a writer, and its frames on the way. A hold on the arena's slot is added before
    the frame is sent, so that a slot can't be used again in between; a message that was not sent takes it back.
  - `_connection`: the reader's side of one writer. It adopts the holds of a message as leases.

Four ways to finish are four different frames or events, so that no reader mistakes one for another: the writer's *end*
(END), its *failure* (FAILED, with the exception), the reader's *close* (CLOSED), and a *death*: the socket or the
process ends without any of these. Everything sent before any of them is received first.

Invariants:
  - A slot is used again only when neither process has a view of it (the arena's holds).
  - A packet leaves whole or not at all, so an interrupt between two packets leaves the connection in order.
  - All waits of one end are on one descriptor (epoll), which the socket, the arena's bell and the peer's pidfd wake.
"""

from penstock.transport._pipe._reader import TensorPipeReader as TensorPipeReader
from penstock.transport._pipe._sender import WriterCounters as WriterCounters
from penstock.transport._pipe._writer import TensorPipeWriter as TensorPipeWriter

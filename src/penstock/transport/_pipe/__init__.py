"""The tensor pipe: writers send elements, nested tensors, to one reader in any process.

Each writer has an arena of shared memory and a Unix socket to the reader. The socket carries small *frames*: the layout
of messages, and the place of each message in the arena. The data stays in the arena, unless it is at most 64 kB.

The problem is to send a batch in microseconds, without a copy at the reader, between processes that may be killed at
any instruction, and to offer both blocking calls and coroutines. The parts:
  - `_socket`: addresses and frames. The reader trusts no frame.
  - `_operations`: an operation that may wait is written once, as *steps*: a generator that yields where it would wait.
    A blocking call and a coroutine drive the same generator. Rejected: an event loop in a thread of its own (two
    switches of threads for each message), and two implementations of each operation.
  - `_writer`, `_sender`: the public writer, and the steps of its operations. The sender adds a hold on the arena's slot
    before it sends the frame, so that the slot isn't used again in between. If a message is withdrawn before it was
    sent, so is its hold.
  - `_reader`: the public reader, and its connection to each writer, which adopts the holds of a message as leases.

An end can finish in four ways, each with a frame or event of its own: the writer's *end* (END), its *failure* (FAILED,
with the exception), the reader's *close* (CLOSED), and a *death*: the socket or the process ends without any of these.
Everything that was sent before is received first.

Invariants:
  - A slot is used again only when neither process has a view of it (the arena's holds).
  - A packet leaves whole or not at all, so an interrupt between two packets does no harm.
  - All waits of one end are on one descriptor (epoll), which is ready when the socket, the arena's bell or the pidfd of
    the other process is.
"""

from penstock.transport._pipe._reader import TensorPipeReader as TensorPipeReader
from penstock.transport._pipe._sender import WriterCounters as WriterCounters
from penstock.transport._pipe._writer import TensorPipeWriter as TensorPipeWriter

"""The memory that batches are sent from: how it comes back, and when more is lent."""

import os
from typing import Any, cast

import numpy as np
import pytest

from penstock._runtime._shared_output import SharedOutput
from penstock.transport import TensorPipeReader
from penstock.transport._arena import Arena
from penstock.transport._pipe._sender import Sender

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")
SIZE = 2_000_000


def test_what_came_back_is_noticed_before_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that gives memory back, and then says that it waits, is no reason to lend more."""

    def never_started(*_: object) -> None:
        """Stand for the thread that notices returns, and is late."""

    monkeypatch.setattr("penstock._runtime._shared_output.DaemonThread", never_started)
    with TensorPipeReader() as reader:
        sender = Sender(reader.address, Arena(), capacity=2, allow_pickle=True, owns_arena=True)
        memory = SharedOutput(sender)

        def passed() -> Any:
            """Return what is received of a batch in lent memory."""
            batch = np.frombuffer(cast("memoryview", memory.allocate(SIZE)), np.uint8, SIZE)
            memory.keep(sender.operations.run(sender.sending(batch), None), [batch])
            return reader.receive()

        try:
            kept, dropped = passed(), passed()
            memory.starve(2)
            assert not memory.await_return()  # both are kept
            del dropped
            memory.starve(2)
            assert memory.await_return()
            assert len(kept) == SIZE
        finally:
            memory.close()
            sender.operations.close()

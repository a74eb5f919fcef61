"""The memory that batches are sent from: when it returns, and when more is leased."""

import os
from typing import Any, cast

import numpy as np
import pytest

from penstock._runtime._isolated_helper import SharedOutput
from penstock.transport import TensorPipeReader
from penstock.transport._arena import Arena
from penstock.transport._pipe._sender import Sender

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")
SIZE = 2_000_000


def test_returned_memory_is_used_before_more_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more memory is leased for a receiver that returned some and then says that it waits."""

    def never_started(*_: object) -> None:
        """Replace the thread that notices returns, as if it were late."""

    monkeypatch.setattr("penstock._runtime._isolated_helper.DaemonThread", never_started)
    with TensorPipeReader() as reader:
        sender = Sender(reader.address, Arena(), capacity=2, allow_pickle=True, owns_arena=True)
        memory = SharedOutput(sender)

        def passed() -> Any:
            """Send a batch in leased memory; return the received one."""
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

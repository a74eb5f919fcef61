"""Blocks are opened in an order in which threads and processes that need the same ones don't wait for each other."""

import mmap
import os
import pickle
import signal
import sys
from contextlib import suppress
from itertools import count
from types import FrameType

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._os import DaemonThread
from penstock.sources._kept_blocks import KeptBlocks
from penstock.sources._shared_blocks import SharedBlocks
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS

BYTES = 1 << 16
ARRAY_BYTES = 800


def array_of(block: int) -> tuple[NDArray[np.int64], int]:
    """Decode a block."""
    return np.full(ARRAY_BYTES // 8, block), ARRAY_BYTES


def test_a_block_that_another_thread_decodes_is_opened_last() -> None:
    """While a block is decoded, those that also need it open the other ones first."""
    kept = KeptBlocks[NDArray[np.int64]](BYTES, SharedBlocks(4, 0))
    turns: list[list[int]] = []

    def decode(block: int) -> tuple[NDArray[np.int64], int]:
        turns.append(list(kept.in_turn([1, 2, 3])))
        return array_of(block)

    kept.opened(2, decode)
    assert turns == [[0, 2, 1]]
    assert list(kept.in_turn([1, 2, 3])) == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="blocks are shared on Linux")
def test_a_block_that_another_process_decodes_is_opened_last() -> None:
    """The same for a copy of the source, which has locks of its own, as one in another process."""
    shared = SharedBlocks(4, BYTES)
    copy: SharedBlocks = pickle.loads(pickle.dumps(shared))
    kept = KeptBlocks[NDArray[np.int64]](BYTES, copy)
    turns: list[list[int]] = []

    def decode(block: int) -> tuple[NDArray[np.int64], int]:
        turns.append(list(kept.in_turn([0, 1, 2])))
        assert not shared.is_being_decoded(block)
        return array_of(block)

    KeptBlocks[NDArray[np.int64]](BYTES, shared).opened(1, decode)
    assert turns == [[0, 2, 1]]
    assert list(kept.in_turn([0, 1, 2])) == [0, 1, 2]
    assert kept.opened(1, decode).tolist() == array_of(1)[0].tolist()
    assert len(turns) == 1


class Interruption:
    """A profiler that presses Ctrl-C at the nth moment of a read at which Python may call the handlers of signals."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count the beginnings of functions, and the ends of calls of C functions."""
        if event in {"call", "c_return"} and "penstock/sources" in frame.f_code.co_filename:
            self.left -= 1
            if not self.left:
                signal.raise_signal(signal.SIGINT)


def opened_by_others(blocks: SharedBlocks) -> bool:
    """Return whether a copy of the source can open block 0, rather than wait for ever."""

    def open_first() -> None:
        KeptBlocks[NDArray[np.int64]](0, blocks).opened(0, array_of)

    return DaemonThread(open_first, "copy").wait(PATIENCE_SECONDS)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="blocks are shared on Linux")
def test_ctrl_c_leaves_no_block_locked() -> None:
    """After Ctrl-C at any moment, all can open the block, and it is freed when nobody uses it."""
    for nth in count(1):
        shared = SharedBlocks(4, 3 * mmap.PAGESIZE)  # room for three blocks
        copy: SharedBlocks = pickle.loads(pickle.dumps(shared))
        ours = KeptBlocks[NDArray[np.int64]](0, shared)
        interruption = Interruption(nth)
        sys.setprofile(interruption)
        with suppress(KeyboardInterrupt):
            ours.opened(0, array_of)
        sys.setprofile(None)
        assert list(ours.in_turn([0, 1])) == [0, 1]
        assert opened_by_others(copy)
        ours.opened(0, array_of)
        ours.opened(1, array_of)  # drops block 0
        ours.opened(2, array_of)  # ends its use
        KeptBlocks[NDArray[np.int64]](0, copy).opened(3, array_of)
        assert copy.take_excess_bytes() == 0
        if interruption.left > 0:
            break


@pytest.mark.usefixtures("forked_programs")
def test_a_source_that_is_made_as_the_process_forks() -> None:
    """Another thread may make one at any moment of the fork."""
    ended = outcome("""
        import os, sys
        from penstock.sources._shared_blocks import SharedBlocks

        made = [SharedBlocks(1, 0), SharedBlocks(1, 0)]
        sys.setprofile(lambda *_: made.append(SharedBlocks(1, 0)))
        child = os.fork()
        sys.setprofile(None)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    """)
    assert (ended.returncode, ended.stderr) == (0, "")

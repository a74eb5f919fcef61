"""Blocks are opened in an order in which threads and processes that need the same ones don't wait for each other."""

import os
import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.sources._kept_blocks import KeptBlocks
from penstock.sources._shared_blocks import SharedBlocks

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

    shared.opened(1, decode)
    assert turns == [[0, 2, 1]]
    assert list(kept.in_turn([0, 1, 2])) == [0, 1, 2]
    assert kept.opened(1, decode).tolist() == array_of(1)[0].tolist()
    assert len(turns) == 1

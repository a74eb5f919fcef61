"""Records that were requested ahead: a worker waits for those of its block, unless the iterator was closed."""

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._graph import Context
from penstock._runtime._io_prefetch import Arrivals, BlockRecords
from penstock.errors import ClosedError
from penstock.sources import AwaitedSource

KEYS = np.arange(2)


class Numbers:
    """An async source of two records."""

    def __len__(self) -> int:
        return 2

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return a record for each key."""
        return [int(key) for key in keys]


def requested() -> tuple[Arrivals, BlockRecords, AwaitedSource]:
    """Return the arrivals of one block, whose only request is in flight, and its source."""
    arrivals = Arrivals(4)
    block = BlockRecords(0, arrivals)
    arrivals.begin(block)
    arrivals.request(block)
    arrivals.finish(block)
    return arrivals, block, AwaitedSource(Numbers())


@pytest.mark.parametrize(("answer", "found"), [(["first", "second"], ["first", "second"]), (None, [0, 1])])
def test_a_block_gets_the_records_that_arrived(answer: list[str] | None, found: list[object]) -> None:
    """After a failed request the worker reads them itself, and so raises the error if there still is one."""
    arrivals, block, source = requested()
    arrivals.answer(block, source, KEYS, answer)
    read = block.context_with_records(Context()).read
    assert read is not None
    assert list(read(source, KEYS)) == found


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_closed_iterator_frees_its_workers(*, is_answered: bool) -> None:
    """A cancelled request is answered without records, too; the worker doesn't read them, since that may never end."""
    arrivals, block, source = requested()
    arrivals.close()
    if is_answered:
        arrivals.answer(block, source, KEYS, None)
    with pytest.raises(ClosedError, match="the iterator was closed"):
        block.context_with_records(Context())


def test_the_end_of_requests_leaves_later_blocks_to_workers_unless_the_iterator_was_closed() -> None:
    """A block whose requests were never sent is read by its worker; after `close` it is not."""
    arrivals = Arrivals(4)
    block = BlockRecords(0, arrivals)
    arrivals.end()
    block.context_with_records(Context())
    arrivals.close()
    with pytest.raises(ClosedError, match="the iterator was closed"):
        block.context_with_records(Context())

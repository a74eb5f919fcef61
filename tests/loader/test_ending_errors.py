"""An exception that ends programs, such as SystemExit, comes at its own batch wherever user code raises it."""

import asyncio
import select
from typing import Any

import pytest

import penstock as ps
from tests.places import in_places

ENDING = pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
BAD = 17


def may_raise(error: type[BaseException], number: int) -> None:
    """Raise an exception at one number."""
    if number == BAD:
        raise error("no number")


class FailingSampler:
    """A user's sampler that raises an exception at one position."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __len__(self) -> int:
        return 40

    def fingerprint(self) -> str:
        """Return the identity of the order, so that no position is tried for it."""
        return "failing"

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the position, or raise."""
        may_raise(self._error, position)
        return epoch, position


@in_places("inline", "threads", "out of order")
@ENDING
@pytest.mark.parametrize("asks", [False, True])
def test_a_sampler_above_batch_raises_at_its_own_step(
    place: dict[str, Any],
    error: type[BaseException],
    asks: bool,  # noqa: FBT001 - parametrized
) -> None:
    """All batches before its step come first, and workers compute those after it when the program seeks past it."""
    dataset = ps.range(160).batch(4).reindex(FailingSampler(error))
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        found: list[int] = []
        for step in range(BAD + 1):
            while asks and (descriptor := batches.may_wait) is not None:
                select.select([descriptor], [], [])
            if step < BAD:
                found.append(int(next(batches)[0]) // 4)
        for _ in range(2):
            with pytest.raises(error, match="no number"):
                next(batches)
        assert sorted(found) == [*range(BAD)]
        loader.seek(BAD + 1)
        assert sorted(int(batch[0]) // 4 for batch in iter(loader)) == [*range(BAD + 1, 40)]

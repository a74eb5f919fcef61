"""Records of an async source that are needed several times at once."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from tests.equivalence.decisions import random_decisions

pytestmark = pytest.mark.each_value


class Failing:
    """A source of squares that fails at the second request for each key, as a busy server may."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return 8

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return squares, or fail."""
        await asyncio.sleep(0)
        for key in keys.tolist():
            self.asked[key] += 1
            if self.asked[key] == 2:
                raise ValueError("busy")
        return [key * key for key in keys.tolist()]


def test_a_failed_request_for_a_repeated_key_is_repeated() -> None:
    """The worker itself reads a record whose request failed; no other record replaces it."""
    source = Failing()
    keys = [3, 3, 3, 5, 3, 5]
    with ps.Loader(ps.read(source).select(keys).batch(6), num_workers=1, workers="threads") as loader:
        assert [batch.tolist() for batch in loader] == [[key * key for key in keys]]
    assert source.asked == {3: 5, 5: 3}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("isolated", [False, True])
def test_repeated_keys_give_their_records(seed: int, isolated: bool) -> None:  # noqa: FBT001 - a case
    """Keys drawn with replacement give their records, whether requested ahead or read by a worker."""
    dataset = ps.read(Squares(), seed=seed).sample([1.0] * 2, 64)
    expected = list(dataset)
    with (
        random_decisions(seed),
        ps.Loader(dataset, num_workers=3, workers="threads", prefetch=1, isolated=isolated) as loader,
    ):
        assert list(loader) == expected


class Squares:
    """A source of two squares."""

    def __len__(self) -> int:
        return 2

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return squares."""
        await asyncio.sleep(0)
        return [(key + 5) ** 2 for key in keys.tolist()]

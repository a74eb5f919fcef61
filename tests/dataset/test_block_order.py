"""A shuffle by blocks: the blocks of the source or equal ones, in any loader, with its costs in the explanation."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps


class Grouped:
    """Numbers in groups: a source with blocks of its own."""

    def __init__(self, *sizes: int) -> None:
        self.blocks = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self.blocks[-1])

    def __getitem__(self, key: int) -> int:
        return range(len(self))[key]


def blocks_read(keys: list[int], bounds: NDArray[np.int64]) -> list[int]:
    """Return the blocks in the order in which they are read; one that is read twice is listed twice."""
    return [block for block, _ in groupby((bounds.searchsorted(keys, side="right") - 1).tolist())]


def test_the_blocks_of_a_source_are_read_one_after_the_other() -> None:
    """With one live block, each block of the source is read as a whole, in another order in each epoch."""
    source = Grouped(5, 1, 0, 9, 30)
    dataset = ps.read(source, seed=1).map(int).shuffle(blocks=True, live=1, rows=1)
    orders = [blocks_read(list(dataset.epoch(epoch)), source.blocks) for epoch in range(6)]
    assert all(sorted(order) == [0, 1, 3, 4] for order in orders)
    assert len(set(map(tuple, orders))) > 1
    assert sorted(dataset) == list(range(45))


def test_blocks_of_a_concatenation_and_a_slice_are_those_of_the_sources() -> None:
    """The bounds are shifted and clipped with the elements."""
    joined = ps.concatenate([ps.read(Grouped(4, 4)), ps.read(Grouped(2, 6)).map(lambda number: number + 8)])
    numbers = list(joined[2:15].shuffle(blocks=True, live=1, rows=1))
    assert sorted(numbers) == list(range(2, 15))
    assert sorted(blocks_read(numbers, np.array([0, 4, 8, 10, 16]))) == [0, 1, 2, 3]


@pytest.mark.parametrize("place", [{}, {"workers": "threads", "num_workers": 2}])
def test_files_have_blocks_and_loaders_resume(tmp_path: Path, place: dict[str, Any]) -> None:
    """A source of files has blocks within each file; a loader gives the definition's batches, also after a resume."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text("".join(f"[{number}, {line}]\n" for line in range(20 * number)))
    source = ps.sources.JsonLines(str(tmp_path / "*.jsonl"), cache=tmp_path)
    assert source.blocks.tolist() == [0, 20, 60]
    dataset = ps.read(source, seed=3).shuffle(blocks=True, live=2, rows=4).map(np.array).batch(4)
    expected = [batch.tolist() for batch in dataset]
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(5)] == expected[:5]
        state = loader.state_dict()
    with ps.Loader(dataset) as resumed:
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == expected[5:]


def test_the_explanation_tells_how_much_is_open_and_how_well_it_mixes() -> None:
    """Too few live blocks for the batch are named with the number that is enough."""
    dataset = ps.range(1000).shuffle(blocks=10, live=8, rows=32)
    few = dict(dataset.batch(32).explain().sections)["order"]
    assert few[0].endswith("8 of 100 blocks are open at a time, 80 of 1,000 elements")
    assert few[1] == "a batch's mean varies 4.0 times as much as under a uniform shuffle; live=32 avoids that"
    assert dict(dataset.batch(8).explain().sections)["order"][1] == "a batch mixes as well as under a uniform shuffle"
    all_open = ps.range(1000).shuffle(blocks=500, live=8, rows=32).batch(32).explain()
    assert dict(all_open.sections)["order"][1].endswith(
        "16.0 times as much as under a uniform shuffle; smaller blocks avoid that"
    )

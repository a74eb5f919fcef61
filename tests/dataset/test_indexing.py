"""A dataset is counted, indexed, sliced and iterated like a list."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import GraphError, NoLengthError
from tests.dataset.functions import Squares, double, is_odd

SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 16, 17, 31])
BOUNDS = st.none() | st.integers(-40, 40)
STEPS = st.none() | st.integers(-5, 5).filter(bool)
SLICES = st.builds(slice, BOUNDS, BOUNDS, STEPS)

VERBS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "read": lambda dataset: dataset,
    "shuffle": lambda dataset: dataset.shuffle(),
    "map": lambda dataset: dataset.map(double),
    "shard": lambda dataset: dataset.shard(0, 2),
    "split": lambda dataset: dataset.shuffle().split({"a": 0.5, "b": 0.5})["a"],
    "repeat": lambda dataset: dataset.shuffle().repeat(2),
    "subset": lambda dataset: dataset.subset(len(dataset) // 2),
    "select": lambda dataset: dataset.select([0] * min(len(dataset), 3)),
    "epoch": lambda dataset: dataset.shuffle().epoch(4),
}


@given(st.sampled_from(sorted(VERBS)), SIZES, SLICES, SLICES)
def test_slices_and_positions_are_those_of_the_list(verb: str, size: int, first: slice, second: slice) -> None:
    """A slice, a slice of a slice, and a position from the start or the end have the list's elements."""
    dataset = VERBS[verb](ps.range(size, seed=3))
    elements = list(dataset)
    assert list(dataset[first]) == elements[first]
    assert len(dataset[first]) == len(elements[first])
    assert list(dataset[first][second]) == elements[first][second]
    assert [dataset[position] for position in range(-len(elements), len(elements))] == elements * 2


def test_positions_past_the_ends_are_index_errors() -> None:
    """A position past either end is an IndexError, as in a list."""
    for position in (5, -6, 2**70, -(2**70)):
        with pytest.raises(IndexError, match=rf"position must be in \[-5, 5\); got {position}"):
            ps.range(5)[position]
    with pytest.raises(IndexError, match=r"position must be in \[0, 0\); got 0"):
        ps.range(0)[0]


def test_positions_are_what_python_takes_as_an_index() -> None:
    """Any other index is a TypeError, as in a list; two iterations don't affect each other."""
    dataset: Any = ps.read(Squares(5))
    assert [dataset[position] for position in (np.int64(3), np.uint8(3), np.array(3), -2)] == [9] * 4
    for position in ("3", 3.0, None, (1, 2), np.arange(2)):
        with pytest.raises(TypeError, match=r"is a position or a slice; got .*\. For a field of .* for several"):
            dataset[position]
    with pytest.raises(TypeError, match="slice indices must be integers"):
        dataset["a":"b"]
    with pytest.raises(ValueError, match="step must not be 0"):
        dataset[::0]
    assert (9 in dataset, 8 in dataset) == (True, False)
    assert [*zip(dataset, dataset, strict=True)] == [(square, square) for square in (0, 1, 4, 9, 16)]


def test_a_filtered_dataset_has_no_length_but_can_be_listed() -> None:
    """`len` raises the type of error after which `list` continues without it."""
    dataset = ps.range(6).filter(is_odd)
    with pytest.raises(NoLengthError, match=r"filter\(is_odd\) can only be read in order, so its number"):
        len(dataset)
    assert list(dataset) == [1, 3, 5]
    assert sorted(dataset, reverse=True) == [5, 3, 1]
    assert issubclass(NoLengthError, TypeError)
    for index in (0, slice(2)):
        with pytest.raises(
            GraphError, match=r"indexing needs .* positions.*Iterate over it, or index before that step"
        ):
            dataset[index]


class TestEndless:
    """A dataset that repeats without end has only a start."""

    dataset = ps.range(3, seed=5).shuffle().repeat()

    def test_elements_are_those_of_the_epochs(self) -> None:
        """Iterating, taking and indexing from the start continue over the epochs."""
        below = ps.range(3, seed=5).shuffle()
        expected = [number for epoch in range(3) for number in below.epoch(epoch)]
        assert list(itertools.islice(self.dataset, 9)) == expected
        assert list(self.dataset.take(9)) == expected
        assert list(self.dataset[2:9:3]) == expected[2:9:3]
        assert list(self.dataset[8:2:-1]) == expected[8:2:-1]
        assert [self.dataset[position] for position in range(9)] == expected

    @pytest.mark.parametrize(
        "index", [-1, slice(None), slice(5, None), slice(-3, 2), slice(2, -1), slice(None, None, -1)]
    )
    def test_nothing_counts_from_its_end(self, index: int) -> None:
        """Positions that depend on the end are refused."""
        with pytest.raises(GraphError, match=r"repeats without end, so positions can't be counted from there; got \["):
            self.dataset[index]

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


@pytest.mark.parametrize("verb", VERBS)
@given(SIZES, SLICES, SLICES)
def test_slices_are_those_of_the_list(verb: str, size: int, first: slice, second: slice) -> None:
    """A slice, and a slice of a slice, has the elements of the list's slice, for any verb."""
    dataset = VERBS[verb](ps.range(size, seed=3))
    elements = list(dataset)
    assert list(dataset[first]) == elements[first]
    assert len(dataset[first]) == len(elements[first])
    assert list(dataset[first][second]) == elements[first][second]


@pytest.mark.parametrize("verb", VERBS)
@given(SIZES)
def test_positions_are_those_of_the_list(verb: str, size: int) -> None:
    """A position counted from the start or the end has the element that iterating returns there."""
    dataset = VERBS[verb](ps.range(size, seed=3))
    elements = list(dataset)
    assert len(dataset) == len(elements)
    assert [dataset[position] for position in range(-len(elements), len(elements))] == elements * 2


@pytest.mark.parametrize("position", [5, -6, 2**70, -(2**70)])
def test_positions_past_the_ends_are_index_errors(position: int) -> None:
    """A position past either end is an IndexError, as in a list."""
    with pytest.raises(IndexError, match=rf"position must be in \[-5, 5\); got {position}"):
        ps.range(5)[position]


def test_an_empty_dataset_has_no_position() -> None:
    """Position 0 is an IndexError."""
    with pytest.raises(IndexError, match=r"position must be in \[0, 0\); got 0"):
        ps.range(0)[0]


@pytest.mark.parametrize("position", [np.int64(3), np.uint8(3), np.array(3), True + 2])
def test_numpy_integers_are_positions(position: int) -> None:
    """Any object that Python takes as an index is a position."""
    assert ps.range(5)[position] == 3


@pytest.mark.parametrize("position", ["3", 3.0, None, (1, 2)])
def test_other_types_are_type_errors(position: int) -> None:
    """An index that is no integer is a TypeError, as in a list."""
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        ps.range(5)[position]


def test_a_step_of_zero_is_refused() -> None:
    """A slice with a step of 0 is an error."""
    with pytest.raises(ValueError, match="step must not be 0"):
        ps.range(5)[::0]


def test_iterators_are_independent() -> None:
    """Each iteration starts at the beginning, and two at once don't affect each other."""
    dataset = ps.range(4, seed=1).shuffle()
    assert list(zip(dataset, dataset, strict=True)) == [(number, number) for number in list(dataset)]


def test_sequence_protocols_work() -> None:
    """`in`, `reversed` and unpacking follow from indexing and iterating."""
    dataset = ps.read(Squares(4))
    assert 9 in dataset
    assert 8 not in dataset
    assert [dataset[-1 - position] for position in range(4)] == [9, 4, 1, 0]
    first, *rest = dataset
    assert (first, rest) == (0, [1, 4, 9])


def test_a_filtered_dataset_has_no_length_but_can_be_listed() -> None:
    """`len` raises the type of error after which `list` continues without it."""
    dataset = ps.range(6).filter(is_odd)
    with pytest.raises(NoLengthError, match=r"filter\(is_odd\) can only be read in order, so its number"):
        len(dataset)
    assert list(dataset) == [1, 3, 5]
    assert sorted(dataset, reverse=True) == [5, 3, 1]
    assert issubclass(NoLengthError, TypeError)


@pytest.mark.parametrize("index", [0, slice(2)])
def test_a_filtered_dataset_has_no_positions(index: int) -> None:
    """An element or a slice of a filtered dataset can't be addressed."""
    with pytest.raises(GraphError, match="indexing needs a dataset whose elements have positions") as caught:
        ps.range(6).filter(is_odd)[index]
    assert "Iterate over it, or index before that step" in str(caught.value)


@pytest.mark.parametrize("dataset", [ps.range(0), ps.range(3).filter(is_odd), ps.range(3).repeat()])
def test_a_dataset_is_true(dataset: ps.Dataset) -> None:
    """`if dataset:` doesn't use the length."""
    assert dataset


class TestEndless:
    """A dataset that repeats without end has only a start."""

    dataset = ps.range(3, seed=5).shuffle().repeat()

    def test_has_no_length(self) -> None:
        """`len` names the remedy."""
        with pytest.raises(NoLengthError, match=r"repeat\(\) repeats without end and has no length. Use take\(n\)"):
            len(self.dataset)

    def test_elements_are_those_of_the_epochs(self) -> None:
        """Iterating, taking and indexing from the start continue over the epochs."""
        below = ps.range(3, seed=5).shuffle()
        expected = [number for epoch in range(3) for number in below.epoch(epoch)]
        assert list(itertools.islice(self.dataset, 9)) == expected
        assert list(self.dataset.take(9)) == expected
        assert list(self.dataset[2:9:3]) == expected[2:9:3]
        assert list(self.dataset[8:2:-1]) == expected[8:2:-1]
        assert [self.dataset[position] for position in range(9)] == expected

    def test_a_loader_iterates_it(self) -> None:
        """A loader continues without end, with batches over the ends of passes."""
        with ps.Loader(self.dataset.batch(4), num_workers=2) as loader:
            batches = [batch.tolist() for batch in itertools.islice(loader, 5)]
            with pytest.raises(NoLengthError, match="repeats without end"):
                len(loader)
        flat = list(itertools.islice(self.dataset, 20))
        assert batches == [flat[start : start + 4] for start in range(0, 20, 4)]

    @pytest.mark.parametrize(
        "index", [-1, slice(None), slice(5, None), slice(-3, 2), slice(2, -1), slice(None, None, -1)]
    )
    def test_nothing_counts_from_its_end(self, index: int) -> None:
        """Positions that depend on the end are refused."""
        with pytest.raises(GraphError, match=r"repeats without end, so positions can't be counted from there; got \["):
            self.dataset[index]


def test_a_slice_has_whole_numbers() -> None:
    """A slice of anything else raises what a list raises."""
    dataset: Any = ps.range(9)
    with pytest.raises(TypeError, match="slice indices must be integers"):
        dataset["a":"b"]

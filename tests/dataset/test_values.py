"""Datasets are values: immutable, comparable, hashable, and picklable where their functions are."""

import copy
import functools
import json
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError
from tests.dataset.functions import Rotated, Scale, Squares, double, is_odd, noisy, row_sums
from tests.equivalence.definition import digests

SOURCE = Squares(12)


def every_verb() -> ps.Dataset:
    """Return a new dataset of many steps at each call."""
    dataset = ps.read([1, 2, 3, 4, 5, 6, 7, 8], seed=9).shuffle().map(double).random_map(noisy, name="noise")
    return dataset.skip(1).select([0, 2, 4, -1]).repeat(2).batch(3, remainder="pad")


def test_datasets_and_their_loaders_are_true() -> None:
    """A test for None by `if` needs no length, which those that are read in order don't have; nor elements."""
    for dataset in (ps.range(0), ps.range(8).filter(is_odd), ps.range(3).repeat()):
        assert dataset
        assert ps.Loader(dataset)


DIFFERENT = {
    "source": ps.range(9),
    "seed": ps.range(8, seed=1),
    "shuffle": ps.range(8).shuffle(),
    "shuffle with a seed": ps.range(8, seed=1).shuffle(),
    "two shuffles": ps.range(8).shuffle().shuffle(),
    "map": ps.range(8).map(double),
    "name": ps.range(8).map(double, name="twice"),
    "on_error": ps.range(8).map(double, on_error="skip"),
    "batch": ps.range(8).batch(2),
    "batch size": ps.range(8).batch(4),
    "remainder": ps.range(8).batch(2, remainder="drop"),
    "slice": ps.range(8)[:4],
    "take": ps.range(8).take(5),
    "filter": ps.range(8).filter(is_odd),
    "padded": ps.range(8).padded_batch(2),
    "select": ps.range(8).select([1, 2]),
    "other selection": ps.range(8).select([1, 3]),
}


def test_descriptions_are_compared() -> None:
    """Datasets of the same calls over equal sources are equal, as are pickled ones; any other part makes another."""
    assert every_verb() == every_verb() == pickle.loads(pickle.dumps(every_verb()))
    assert {every_verb(): "found"}[every_verb()] == "found"
    assert ps.range(8) == ps.range(0, 8) != ps.range(1, 9)
    assert hash(ps.range(8)) == hash(ps.range(0, 8))
    assert ps.range(2) != [0, 1]
    names = list(DIFFERENT)
    for first in names:
        for second in names:
            assert (DIFFERENT[first] == DIFFERENT[second]) is (first == second), (first, second)
    assert len(set(DIFFERENT.values())) == len(names)


class Named(Squares):
    """A source with equality of its own, which hides its contents."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.length == other.length

    def __hash__(self) -> int:
        return self.length


def test_sources_that_cannot_be_compared_are_equal_to_themselves_alone() -> None:
    """A list of arrays has no truth value of its equality, and comparing datasets doesn't raise."""
    arrays = [np.zeros(3), np.ones(3)]
    assert ps.read(arrays) == ps.read(arrays)
    assert ps.read(arrays) != ps.read([np.zeros(3), np.ones(3)])
    assert ps.read(SOURCE) == ps.read(SOURCE)
    assert ps.read(SOURCE) != ps.read(Squares(12))
    first, second = ps.read(Named(5)).batch(2), ps.read(Named(5)).batch(2)
    assert first == second
    assert hash(first) == hash(second)  # though their reprs have an address


PICKLED: list[ps.Dataset] = [
    every_verb(),
    ps.read(SOURCE).map(double),
    ps.range(10).reindex(Rotated(10)).take(4),
    ps.read({"x": np.arange(24.0).reshape(8, 3), "y": np.arange(8)}, seed=1).shuffle().batch(3, mask="m"),
    ps.range(4).map(functools.partial(divmod, 7), on_error=ps.Substitute(attempts=8)),
    ps.range(4).map(Scale(3)),
    ps.read(np.ones((6, 2))).batch(2).map(row_sums).unbatch(),
    ps.read([np.ones(1), np.ones(3)]).padded_batch(2, mask=None, fill=-1),
    ps.range(20, seed=2).split({"train": 0.5, "val": 0.5}, seed=3)["val"],
]


def test_pickled_datasets_give_the_same() -> None:
    """A dataset of module-level functions yields the same bytes after pickling and copying."""
    for dataset in PICKLED:
        for other in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset), copy.deepcopy(dataset)):
            assert digests(other) == digests(dataset)
            assert other.fingerprint == dataset.fingerprint


def test_a_dataset_takes_no_attributes() -> None:
    """Setting an attribute raises."""
    with pytest.raises(AttributeError):
        setattr(ps.range(3), "seed", 4)  # noqa: B010 - the checkers refuse a plain assignment


def test_the_elements_type_is_for_checkers_alone() -> None:
    """`Dataset[int]` is the same class and value as `Dataset` at runtime."""
    numbers: ps.Dataset[int] = ps.range(3)
    assert isinstance(numbers, ps.Dataset)
    assert ps.Dataset[int](numbers.node) == numbers
    assert type(ps.Dataset[int](numbers.node)) is ps.Dataset
    assert isinstance(ps.Loader[int](numbers), ps.Loader)


def test_making_a_dataset_reads_nothing() -> None:
    """A description of any number of steps reads no record."""

    class Unread(Squares):
        def __getitem__(self, key: int) -> int:
            raise AssertionError("nothing should be read")

    dataset = ps.read(Unread(100)).shuffle()[10:50].map(double).batch(4).repeat(2)
    assert len(dataset) == 20
    assert repr(dataset)
    assert dataset.fingerprint


def mapped(dataset: ps.Dataset) -> ps.Dataset:
    """Return the dataset below a map."""
    return dataset.map(abs)


def joined(dataset: ps.Dataset) -> ps.Dataset:
    """Return the dataset and another part."""
    return ps.concatenate([dataset, ps.range(1)])


@pytest.mark.parametrize("add", [mapped, joined])
def test_at_most_200_steps_are_one_above_the_other(add: Callable[[ps.Dataset], ps.Dataset]) -> None:
    """As many can be iterated, loaded, resumed and pickled; one more is refused, before Python's limit of recursion."""
    dataset: ps.Dataset = ps.range(3)
    for _ in range(198):
        dataset = add(dataset)
    assert next(iter(dataset)) == 0
    batches = pickle.loads(pickle.dumps(dataset.batch(2)))
    with ps.Loader(batches) as loader:
        assert next(iter(loader)).tolist() == [0, 1]
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert next(iter(loader))[0] == 2
    with pytest.raises(GraphError, match=r"at most 200 steps may be one above the other, .* is number 201\."):
        add(batches)

"""`batch`, `padded_batch` and `unbatch`: remainders, masks, merge functions, and rows that are unbatched."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import GraphError
from tests.places import in_places


def rows_of(dataset: ps.Dataset) -> list[Any]:
    """Return each batch as a list of its rows."""
    return [batch.tolist() for batch in dataset]


REMAINDERS: dict[str, tuple[Callable[[ps.Dataset], ps.Dataset], list[list[int]]]] = {
    "keep": (lambda dataset: dataset.batch(3), [[0, 1, 2], [3, 4, 5], [6]]),
    "drop": (lambda dataset: dataset.batch(3, remainder="drop"), [[0, 1, 2], [3, 4, 5]]),
    "pad": (lambda dataset: dataset.batch(3, remainder="pad"), [[0, 1, 2], [3, 4, 5], [6, 6, 6]]),
}


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_the_last_batch_follows_the_remainder(remainder: str) -> None:
    """A partial last batch is short, left out, or padded with its last element, also in order."""
    make, expected = REMAINDERS[remainder]
    assert rows_of(make(ps.range(7))) == expected
    assert len(make(ps.range(7))) == len(expected)
    assert rows_of(make(ps.range(7).filter(lambda number: number < 7))) == expected
    assert rows_of(make(ps.range(6))) == [[0, 1, 2], [3, 4, 5]]
    assert rows_of(make(ps.range(0))) == []
    assert rows_of(make(ps.range(2)))[:1] == {"keep": [[0, 1]], "drop": [], "pad": [[0, 1, 1]]}[remainder]


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
def test_the_mask_is_in_every_batch(remainder: Any) -> None:
    """The mask is a bool leaf, true for rows of data and false for padding, whatever the remainder."""
    records = ps.read({"x": np.arange(7)})
    for dataset in (records.batch(3, remainder=remainder, mask="data"), records.filter(bool).batch(3, mask="data")):
        for batch in dataset:
            assert batch["data"].dtype == np.bool_
            assert len(batch["data"]) == len(batch["x"])
    batches = list(records.batch(3, remainder="pad", mask="data"))
    assert [batch["data"].tolist() for batch in batches] == [[True] * 3, [True] * 3, [True, False, False]]
    assert [row for batch in batches for row in batch["x"][batch["data"]].tolist()] == list(range(7))


SHAPED: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "batch": lambda dataset: dataset.batch(3),
    "drop": lambda dataset: dataset.batch(3, remainder="drop"),
    "pad": lambda dataset: dataset.batch(3, remainder="pad"),
    "map": lambda dataset: dataset.batch(3).map(lambda batch: batch * 10),
    "reindexed": lambda dataset: dataset.take(9).batch(3).shuffle(),
    "slice": lambda dataset: dataset.take(9).batch(3)[::-2],
    "merged": lambda dataset: dataset.batch(3, merge=np.array),
}


def test_unbatch_gives_the_rows() -> None:
    """Rows come in order, keep their positions where batches are full, and count."""
    for name, make in SHAPED.items():
        for size in (9, 10, 11):
            batches = make(ps.range(size, seed=1))
            dataset = batches.unbatch()
            expected = [row for batch in batches for row in batch.tolist()]
            assert [int(row) for row in dataset] == expected, name
            assert [int(dataset[position]) for position in range(-len(dataset), 0)] == expected
            assert len(dataset) == len(expected)


def test_unbatch_after_reordering_short_batches_is_in_order_only() -> None:
    """If a short batch may be anywhere, rows have no known positions, but are read in order."""
    dataset = ps.range(10, seed=1).batch(3).shuffle()
    with pytest.raises(GraphError, match=r"unbatch\(\) can only be read in order"):
        dataset.unbatch()[0]
    assert [int(row) for row in dataset.unbatch()] == [row for batch in dataset for row in batch.tolist()]


@pytest.mark.parametrize("bad", [0, 8], ids=["a full batch", "the short batch"])
@in_places("inline", "processes")
def test_unbatch_after_substitutes_of_other_sizes_is_in_order_only(place: dict[str, Any], bad: int) -> None:
    """If another batch may take the place of the short one, or the short one of another, rows are read in order."""
    batches = ps.range(10, seed=2).batch(4).map(functools.partial(refuse, bad), on_error=ps.Substitute(8))
    expected = [row for batch in batches for row in batch.tolist()]
    dataset = batches.unbatch()
    with pytest.raises(GraphError, match=r"unbatch\(\) can only be read in order"):
        dataset[0]
    assert [int(row) for row in dataset] == expected
    with ps.Loader(dataset.batch(3), **place) as loader:
        iterator = iter(loader)
        found = next(iterator).tolist()
        state = loader.state_dict()
    with ps.Loader(dataset.batch(3), **place) as loader:
        loader.load_state_dict(state)
        assert [*found, *(row for batch in loader for row in batch.tolist())] == expected


def refuse(bad: int, batch: NDArray[Any]) -> NDArray[Any]:
    """Return a batch, unless it has a bad row."""
    if bad in batch:
        raise ValueError(f"row {bad}")
    return batch


def test_unbatch_after_substitutes_of_full_batches_has_positions() -> None:
    """Batches of one size take each other's place."""
    dataset = ps.range(12).batch(4).map(functools.partial(refuse, 8), on_error=ps.Substitute(8)).unbatch()
    assert len(dataset) == 12
    assert [int(dataset[position]) for position in range(12)] == [int(row) for row in dataset]


def halve(batch: NDArray[Any]) -> NDArray[Any]:
    """Return every other row."""
    return batch[::2]


def test_a_function_that_changes_the_rows_is_named() -> None:
    """A function between `batch` and `unbatch` that adds or removes rows is an error, which names it."""
    dataset = ps.range(9).batch(4).map(halve).unbatch()
    with pytest.raises(GraphError, match=r"unbatch\(\) found 2 rows in batch 0 instead of 4: a function above batch"):
        dataset[0]
    assert [int(row) for row in ps.range(9).filter(lambda _: True).batch(4).map(halve).unbatch()] == [0, 2, 4, 6, 8]

"""`batch`, `padded_batch` and `unbatch`: remainders, masks, merge functions, and rows that are unbatched."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import GraphError, UsageError
from tests.dataset.functions import is_odd
from tests.equivalence.definition import digest
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


def test_a_mask_needs_a_dict() -> None:
    """The mask is a leaf beside others, so a batch without names is refused."""
    with pytest.raises(GraphError, match="mask='m' must name a new leaf of a dict; the batch is a ndarray"):
        ps.range(4).batch(2, mask="m")[0]
    with pytest.raises(GraphError, match="the batch is a dict that has 'x' already"):
        list(ps.read({"x": np.arange(4)}).batch(2, mask="x"))


class Point(NamedTuple):
    """A named tuple as an element."""

    x: int
    name: str


def test_leaves_are_stacked_by_type() -> None:
    """Numbers become int64, float64 and bool; text becomes a list; containers stay what they are."""
    records = [
        {"i": n, "f": n / 2, "b": n > 1, "s": str(n), "y": b"%d" % n, "p": Point(n, "p"), "l": [n, None]}
        for n in range(3)
    ]
    batch: dict[str, Any] = ps.read(records).batch(3)[0]
    dtypes = {name: batch[name].dtype for name in "ifb"}
    assert dtypes == {"i": np.dtype("int64"), "f": np.dtype("float64"), "b": np.dtype("bool")}
    assert (batch["s"], batch["y"]) == (["0", "1", "2"], [b"0", b"1", b"2"])
    assert digest(batch["p"]) == (Point, [digest(np.arange(3)), digest(["p"] * 3)])
    assert (batch["l"][0].tolist(), batch["l"][1]) == ([0, 1, 2], None)


def test_a_merge_function_makes_the_batch() -> None:
    """The function gets a list of elements, padding included, and may return any value."""
    dataset = ps.range(5).batch(2, merge=lambda elements: (len(elements), sum(elements)))
    assert list(dataset) == [(2, 1), (2, 5), (1, 4)]
    assert list(ps.range(5).batch(2, merge=list, remainder="pad")) == [[0, 1], [2, 3], [4, 4]]
    assert list(ps.range(9).filter(is_odd).batch(3, merge=list)) == [[1, 3, 5], [7]]
    assert list(ps.range(5).batch(2, merge=lambda elements: {"all": elements}, mask="m"))[2]["m"].tolist() == [True]


VECTORS = [np.arange(1, length + 1) for length in (1, 3, 2)]


def test_padding_reaches_the_longest_element_of_a_batch() -> None:
    """Each batch is as long as its longest element."""
    dataset = ps.read(VECTORS).padded_batch(2, fill=-1)
    assert rows_of(dataset) == [[[1, -1, -1], [1, 2, 3]], [[1, 2]]]


def test_static_padding_has_one_length() -> None:
    """Every batch has the given length, and a longer element is an error that names its row."""
    dataset = ps.read(VECTORS).padded_batch(2, length=4)
    assert rows_of(dataset) == [[[1, 0, 0, 0], [1, 2, 3, 0]], [[1, 2, 0, 0]]]
    with pytest.raises(UsageError, match="no row may be longer than length=2; the element of row 1 has 3"):
        list(ps.read(VECTORS).padded_batch(2, length=2))


def test_padding_has_a_mask_of_its_own() -> None:
    """The mask is true where there is data, with one bool for each place of each row."""
    dataset = ps.read([{"x": vector} for vector in VECTORS]).padded_batch(2, mask="m", length=3)
    assert [batch["m"].tolist() for batch in dataset] == [[[True, False, False], [True] * 3], [[True, True, False]]]


def test_padding_a_remainder_repeats_the_last_element() -> None:
    """Padding of elements and of batches can be used together."""
    dataset = ps.read(VECTORS).padded_batch(2, remainder="pad")
    assert rows_of(dataset)[1] == [[1, 2], [1, 2]]
    assert rows_of(ps.read(VECTORS).padded_batch(2, remainder="drop")) == [[[1, 0, 0], [1, 2, 3]]]


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


def test_unbatch_restores_elements() -> None:
    """Stacked elements get their structure back, with NumPy's scalars for numbers."""
    records = [{"x": np.full(2, n), "n": n, "s": str(n), "none": None} for n in range(5)]
    rows = list(ps.read(records).batch(2).unbatch())
    assert digest(rows[3]["x"]) == digest(records[3]["x"])
    assert [(int(row["n"]), row["s"], row["none"]) for row in rows] == [(n, str(n), None) for n in range(5)]


def halve(batch: NDArray[Any]) -> NDArray[Any]:
    """Return every other row."""
    return batch[::2]


def test_a_function_that_changes_the_rows_is_named() -> None:
    """A function between `batch` and `unbatch` that adds or removes rows is an error, which names it."""
    dataset = ps.range(9).batch(4).map(halve).unbatch()
    with pytest.raises(GraphError, match=r"unbatch\(\) found 2 rows in batch 0 instead of 4: a function above batch"):
        dataset[0]
    assert [int(row) for row in ps.range(9).filter(lambda _: True).batch(4).map(halve).unbatch()] == [0, 2, 4, 6, 8]


def test_batches_of_batches() -> None:
    """Batches stack like other elements, and `unbatch` removes one level."""
    dataset = ps.range(8).batch(2).batch(2)
    assert rows_of(dataset) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert rows_of(dataset.unbatch()) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [int(row) for row in dataset.unbatch().unbatch()] == list(range(8))

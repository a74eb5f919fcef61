"""Batches are split into their rows."""

import re

import numpy as np
import pytest
from hypothesis import assume, given

from penstock.batching import Batch, LeafSpec, element_spec, split_rows, stack
from penstock.errors import UsageError
from tests.batching.strategies import element_lists
from tests.trees import Element, assert_same, is_array, leaves_of

with_rows = element_lists().filter(lambda elements: any(leaf is not None for leaf in leaves_of(elements[0])))


@given(with_rows)
def test_split_rows_make_the_same_batch_again(elements: list[Element]) -> None:
    """The rows of a batch, stacked, are that batch; a NumPy scalar keeps the dtype of its array."""
    batch = stack(elements)
    rows = split_rows(batch)
    assert len(rows) == len(elements)
    for leaf in leaves_of(batch):
        if is_array(leaf) and leaf.ndim == 1:
            assume(leaf.dtype.kind not in "US" and leaf.dtype.isnative)
    assert_same(batch, stack(rows))


def test_a_row_has_views_and_numpy_scalars() -> None:
    """An element has views of the batch's arrays, and NumPy scalars of arrays with only the row axis."""
    batch = stack([{"x": np.zeros(2), "n": 1, "s": "a", "o": None}, {"x": np.ones(2), "n": 2, "s": "b", "o": None}])
    first, second = split_rows(batch)
    assert np.shares_memory(first["x"], batch["x"])
    assert (type(second["n"]), second["n"], second["s"], second["o"]) == (np.int64, 2, "b", None)


def test_a_batch_without_a_number_of_rows_is_refused() -> None:
    """The message names the leaves that disagree, or that have no rows."""
    axis = "without one. Let the merge return an array with one row for each element, or remove the leaf in .map."
    cases: list[tuple[Batch, str]] = [
        (
            {"x": np.zeros(2), "y": ["a", "b", "c"]},
            "all leaves of a batch must have one number of rows; ['x'] has 2 and ['y'] has 3. "
            "Return leaves of one length from .map.",
        ),
        (
            {"x": np.zeros(2), "y": np.array(1)},
            f"every leaf of a batch must have a row axis; ['y'] is a ndarray {axis}",
        ),
        ((np.zeros(2), "text"), f"every leaf of a batch must have a row axis; [1] is a str {axis}"),
        (
            {"x": None},
            "a batch must have an array, or a list of str or bytes, which determines its rows; got none. "
            "Return one from .map.",
        ),
    ]
    for batch, message in cases:
        with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
            split_rows(batch)


def test_a_spec_says_what_an_element_is() -> None:
    """The spec has the element's containers, with shape and dtype or the type of each leaf."""
    element = {"image": np.zeros((2, 3), "u1"), "label": 3, "flag": True, "part": [np.float32(1), "a", b"b", None, 1.0]}
    scalar = [LeafSpec((), np.dtype(name)) for name in ("i8", "?", "f4", "f8")]
    assert element_spec(element) == {
        "image": LeafSpec((2, 3), np.dtype("u1")),
        "label": scalar[0],
        "flag": scalar[1],
        "part": [scalar[2], str, bytes, None, scalar[3]],
    }


def test_a_spec_refuses_what_cannot_be_a_leaf() -> None:
    """The path and type of a leaf that can't be in a batch are named."""
    with pytest.raises(UsageError, match=r"\['x'\] is a set\. Convert it in \.map"):
        element_spec({"x": {1}})

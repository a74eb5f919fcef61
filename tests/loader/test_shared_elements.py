"""Elements of one `flat_map` may share memory; a function above that writes to its input changes no other element."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps

ROWS = 4  # of each source's element


FORMS: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
    "one element": lambda element: [element] * ROWS,
    "one array": lambda element: [{"x": element["x"]} for _ in range(ROWS)],
    "one array that has memory of its own": lambda element: [{"x": x} for x in [element["x"].copy()] * ROWS],
    "overlapping": lambda element: [{"x": element["x"][start : start + 3]} for start in range(ROWS)],
    "with negative strides, and a whole array": lambda element: [
        {"x": element["x"][::-1]},
        *({"x": element["x"][start::-1]} for start in range(1, ROWS)),
    ],
}


def added(element: dict[str, Any]) -> dict[str, Any]:
    """Write to an element."""
    element["x"] += 1
    return element


@pytest.mark.parametrize("form", FORMS)
def test_a_function_above_writes_to_its_own_element(form: str) -> None:
    """Each element has 1 added once: in the dataset and in a loader, with positions and without."""
    frames = np.arange(35).reshape(5, 7)
    expected = [(row["x"] + 1).tolist() for episode in frames for row in FORMS[form]({"x": episode})]
    for counts in (None, [ROWS] * 5):
        dataset = ps.read({"x": frames.copy()}).flat_map(FORMS[form], counts=counts).map(added)
        for epoch in (dataset, ps.Loader(dataset), ps.Loader(dataset, num_workers=2)):
            assert [row["x"].tolist() for row in epoch] == expected


def test_disjoint_rows_are_not_copied() -> None:
    """Rows of one array that share no frame stay views of it, and so do read-only windows that share some."""
    frames = np.arange(24).reshape(2, 12)
    split = ps.read({"x": frames}).flat_map(lambda element: [element["x"][:6], element["x"][6:]])
    assert all(row.base is not None for row in split)

    def windows(element: dict[str, Any]) -> list[Any]:
        element["x"].flags.writeable = False
        return [element["x"][:6], element["x"][3:9]]

    assert all(row.base is not None for row in ps.read({"x": frames}).flat_map(windows))

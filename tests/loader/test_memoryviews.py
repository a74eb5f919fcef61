"""A memoryview stays one, and a text of NumPy keeps all of it, wherever they are computed."""

import array
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import LINUX, PLACES, place_of

VIEWS: dict[str, Any] = {
    "bytes": memoryview(b"abc"),
    "a bytearray": memoryview(bytearray(b"abc")),
    "characters": memoryview(b"ab").cast("c"),
    "an array.array": memoryview(array.array("f", [1, 2])),
    "rows and columns": np.arange(6).reshape(2, 3).data,
    "columns and rows": np.asfortranarray(np.arange(6).reshape(2, 3)).data,
    "every second item": np.arange(6).data[::2],
    "no rows": np.zeros((0, 3)).data,
    "another byte order": np.array([1, 2], ">i4").data,
    "nothing": memoryview(b""),
}


TEXTS = [np.bytes_(b"a\0b\0"), np.str_("a\0b\0")]  # an array, and a pickle of NumPy, would drop the nuls at the end


@pytest.mark.parametrize(
    "place",
    [
        *(place_of(name) for name in ("inline", "threads", "processes", "isolated")),
        # test_types_of_batches.py sends batches through both kinds of processes in the short profile
        pytest.param(PLACES["isolated processes"], id="isolated processes", marks=[LINUX, pytest.mark.long]),
    ],
)
def test_memoryviews_and_texts_keep_all_that_they_are(place: dict[str, Any]) -> None:
    """A function of a local scope holds them, and returns them in its elements."""
    views = [*VIEWS.values()]
    dataset: ps.Dataset[Any] = ps.range(len(views)).map(
        lambda number: {"number": number, "view": views[number], "texts": TEXTS}
    )
    with ps.Loader(dataset, **place) as loader:
        for (name, view), element in zip(VIEWS.items(), loader, strict=True):
            found = element["view"]
            assert type(found) is memoryview, name
            assert (found.format, found.shape, found.readonly) == (view.format, view.shape, view.readonly), name
            assert found.tobytes() == view.tobytes(), name
            assert [(type(text), text[:]) for text in element["texts"]] == [(type(text), text[:]) for text in TEXTS]

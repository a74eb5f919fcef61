"""A memoryview stays one, and a text of NumPy keeps all of it, wherever they are computed."""

import array
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import in_places

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


@in_places("inline", "threads", "processes", "isolated")
@pytest.mark.parametrize("kind", VIEWS)
def test_a_memoryview_stays_one(kind: str, place: dict[str, Any]) -> None:
    """A function of a local scope holds it, and returns it in its elements."""
    view = VIEWS[kind]
    with ps.Loader(ps.range(2).map(lambda number: {"number": number, "view": view}), **place) as loader:
        for number, element in enumerate(loader):
            found = element["view"]
            assert type(found) is memoryview
            assert (element["number"], found.tobytes()) == (number, view.tobytes())
            assert (found.format, found.shape, found.readonly) == (view.format, view.shape, view.readonly)


@in_places("inline", "threads", "processes", "isolated", "isolated processes")
def test_a_text_of_numpy_keeps_nuls_at_its_end(place: dict[str, Any]) -> None:
    """An array, and a pickle of NumPy, would drop them."""
    texts = [np.bytes_(b"a\0b\0"), np.str_("a\0b\0")]
    with ps.Loader(ps.range(4).map(lambda _: texts), **place) as loader:
        found = [text for element in loader for text in element]
    assert [(type(text), text[:]) for text in found] == [(np.bytes_, b"a\0b\0"), (np.str_, "a\0b\0")] * 4

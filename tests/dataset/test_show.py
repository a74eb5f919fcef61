"""Texts of datasets: the tree, the chain in errors, notebooks, and the structure of elements."""

import base64
import functools
import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.batching import LeafSpec
from tests.dataset.functions import Rotated, Scale, Squares, double, is_odd, noisy


def keyed(number: int, origin: ps.Origin) -> tuple[int, int]:
    """Return the number and its record's key."""
    return number, origin.key


def test_repr_is_a_tree() -> None:
    """The last step is on top, each step has its length, and the source is at the bottom."""
    dataset = ps.range(10).shuffle().map(double).take(7).batch(2).filter(len)
    assert repr(dataset).splitlines() == [
        "filter(len): in order only",
        "  └ batch(2): 4",
        "    └ take(7): 7",
        "      └ map(double): 10",
        "        └ shuffle(): 10",
        "          └ read(Range(0, 10, 1)): 10",
    ]


VERBS = {
    "shuffle()": ps.range(6).shuffle(),
    "[1:3]": ps.range(6)[1:3],
    "[::-2]": ps.range(6)[::-2],
    "take(2)": ps.range(6).shuffle().take(2),
    "skip(2)": ps.range(6).skip(2),
    "shard(1, 2)": ps.range(6).shard(1, 2),
    "select(2 positions)": ps.range(6).select([0, 3]),
    "split()['val']": ps.range(6).split({"val": 0.5})["val"],
    "subset(3)": ps.range(6).subset(3),
    "repeat(2)": ps.range(6).repeat(2),
    "repeat()": ps.range(6).repeat(),
    "epoch(3)": ps.range(6).epoch(3),
    "reindex(Rotated)": ps.range(6).reindex(Rotated(6)),
    "map(double)": ps.range(6).map(double),
    "map(mine)": ps.range(6).map(double, name="mine"),
    "map(double, on_error='skip')": ps.range(6).map(double, on_error="skip"),
    "map(double, on_error=Substitute(attempts=3, budget=None))": ps.range(6).map(double, on_error=ps.Substitute()),
    "map(Scale)": ps.range(6).map(Scale(2)),
    "map(divmod)": ps.range(6).map(functools.partial(divmod, 9)),
    "random_map(noisy)": ps.range(6).random_map(noisy),
    "map_with_origin(keyed)": ps.range(6).map_with_origin(keyed),
    "filter(is_odd)": ps.range(6).filter(is_odd),
    "batch(2)": ps.range(6).batch(2),
    "batch(4, remainder='drop')": ps.range(6).batch(4, remainder="drop"),
    "batch(2, merge=list)": ps.range(6).batch(2, merge=list),
    "padded_batch(2)": ps.range(6).padded_batch(2),
    "unbatch()": ps.range(6).batch(2).unbatch(),
}


def test_every_verb_shows_as_it_was_written() -> None:
    """The first line of the tree is the call with its arguments."""
    assert [repr(dataset).splitlines()[0].rpartition(": ")[0] for dataset in VERBS.values()] == [*VERBS]


class Verbose(Squares):
    """A source with a repr of many lines."""

    def __repr__(self) -> str:
        return "Verbose({\n    features: [" + ", ".join(map(str, range(self.length))) + "]\n})"


def test_a_long_source_takes_one_line() -> None:
    """A repr of many lines is shortened to one."""
    text = repr(ps.read(Verbose(500)))
    assert text.count("\n") == 0
    assert len(text) < 90
    assert text.startswith("read(Verbose({ features: [0, 1")


def image(number: int) -> NDArray[np.uint8]:
    """Return a colourful image of a number."""
    return np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3) + np.uint8(number)


def images_in(html: str) -> list[NDArray[np.uint8]]:
    """Return the images of a page, decoded by Pillow."""
    pillow = pytest.importorskip("PIL.Image")
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)"', html)
    return [np.asarray(pillow.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def page_of(shown: object) -> str:
    """Return the page of a notebook."""
    return str(getattr(shown, "_repr_html_")())  # noqa: B009 - the protocol of notebooks has an underscore


def html_of(dataset: ps.Dataset) -> str:
    """Return the page with the first elements."""
    return page_of(dataset.show())


def test_notebooks_show_structure_and_images() -> None:
    """The page has the tree, each leaf's path and kind, and the first eight images, pixel for pixel."""
    dataset = ps.range(20).map(lambda number: {"image": image(number), "label": number, "name": "<b>"})
    html = html_of(dataset)
    assert "<code>[&#x27;image&#x27;]</code></td><td>uint8 of shape (5, 6, 3)</td>" in html
    assert "<code>[&#x27;label&#x27;]</code></td><td>int64</td>" in html
    assert "<code>[&#x27;name&#x27;]</code></td><td>str</td>" in html
    shown = images_in(html)
    assert len(shown) == 8
    assert all(np.array_equal(found, image(number)) for number, found in enumerate(shown))


def refuse(_: object) -> Any:
    """Fail, as no function may be called."""
    raise AssertionError


class Broken:
    """A source that can't be read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> object:
        raise OSError("<gone>")


RECORDS = [{"image": b"\xff\xd8\xff" + bytes(9), "label": 3, "text": "<b>" * 40}] * 9
UNCALLED: dict[str, tuple[Callable[[], ps.Dataset[Any]], tuple[str, ...]]] = {
    "no function": (lambda: ps.range(5).shuffle().batch(2), ("<table><tr><td><code>element", "<div>[")),
    "a map": (lambda: ps.read(RECORDS).map(refuse), ("The first elements of read(list). show()", "jpeg;base64,/9j/")),
    "texts": (lambda: ps.read(RECORDS).shuffle().filter(refuse), ("<div>&#x27;&lt;b&gt;", "…&#x27;", "<div>3</div>")),
    "a mixture": (
        lambda: ps.mix([ps.range(4).map(refuse), ps.range(5)], [1, 1]),
        ("elements of read(Range(0, 4, 1))",),
    ),
    "a stream": (lambda: ps.stream(lambda: refuse(0)), ("show() computes the first elements",)),
    "a broken source": (lambda: ps.read(Broken()), ("OSError: &lt;gone&gt;",)),
}


def test_a_notebook_calls_no_function() -> None:
    """It shows the first elements that are made without the user's functions, or an error of the source."""
    for dataset, words in UNCALLED.values():
        page = page_of(dataset())
        assert all(word in page for word in words), page


def test_notebooks_escape_names_and_reprs() -> None:
    """Names and reprs can't become tags."""
    html = html_of(ps.range(2).map(lambda number: {"<script>": number}, name="<img src=x>"))
    assert "<script>" not in html
    assert "<img" not in html
    assert "&lt;img src=x&gt;" in html


GREY = np.arange(30, dtype=np.uint8).reshape(5, 6)
RAMP = np.linspace(-1.0, 1.0, 30, dtype=np.float32).reshape(5, 6)
SCALED = ((RAMP.astype(np.float64) + 1.0) / 2.0 * 255).astype(np.uint8)
SHOWN: dict[str, tuple[Any, list[NDArray[np.uint8]]]] = {
    "grey": (GREY, [GREY]),
    "one channel": (GREY[:, :, None], [GREY]),
    "float": (RAMP, [SCALED]),
    "constant": (np.full((4, 4), 7.0), [np.zeros((4, 4), np.uint8)]),
    "not a number": (np.full((4, 4), np.nan), [np.zeros((4, 4), np.uint8)]),
    "infinite": (np.full((4, 4), np.inf), [np.zeros((4, 4), np.uint8)]),
    "batch": (np.stack([image(0), image(1)]), [image(0), image(1)]),
    "grey batch": (np.stack([GREY, GREY]), [GREY, GREY]),
    "vector": (np.zeros(9), []),
    "text": ("text", []),
    "bool": (np.zeros((5, 5), bool), []),
    "small": (np.zeros((3, 9)), []),
}


def test_image_like_leaves_are_drawn() -> None:
    """An image has two axes, or three with one or three channels; floats use their own range; batches are rows."""
    for name, (leaf, expected) in SHOWN.items():
        shown = images_in(html_of(ps.read([{"leaf": leaf}])))
        assert [found.tolist() for found in shown] == [each.tolist() for each in expected], name


class Opened:
    """An image of another library, which is closed."""

    def __repr__(self) -> str:
        raise ValueError("the image is closed")


def test_notebooks_show_objects() -> None:
    """A leaf that can't be batched yet is named by its type; one whose text can't be made, by its kind."""
    html = html_of(ps.range(3).map(lambda _: {"opened": Opened(), "array": np.array([Opened()]), "size": 3}))
    assert "<code>[&#x27;opened&#x27;]</code></td><td>Opened</td>" in html
    assert "<code>[&#x27;array&#x27;]</code></td><td>ndarray</td>" in html


def test_element_spec_is_the_structure() -> None:
    """The spec has each leaf's shape and dtype, from the first element; it is None without one."""
    number = LeafSpec((), np.dtype("int64"))
    dataset = ps.range(4).map(lambda number: {"x": np.zeros((2, number + 1), np.float32), "n": number, "s": "a"})
    assert dataset.element_spec == {"x": LeafSpec((2, 1), np.dtype("float32")), "n": number, "s": str}
    assert ps.range(7).batch(3).element_spec == LeafSpec((3,), np.dtype("int64"))
    assert ps.range(7).filter(is_odd).element_spec == number
    assert ps.range(0).element_spec is None
    assert ps.range(3).repeat().element_spec == number

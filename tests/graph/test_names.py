"""A step's name names its random stream: by default its function's name, with a number if that is used already."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.errors import GraphError, UsageError
from tests.dataset.functions import Rotated, Scale, double, draw, is_odd
from tests.seeds import derive

LAMBDAS: list[Callable[[Any], Any]] = [lambda number: number, lambda number: number + 1]


def names(dataset: ps.Dataset) -> list[str]:
    """Return the names of a dataset's maps, from the source upwards."""
    return re.findall(r"map\((.+)\): ", repr(dataset))[::-1]


def streams(dataset: ps.Dataset) -> list[str]:
    """Return the names of a dataset's random streams, from the source upwards."""
    return re.findall(r"stream '(.+)'", str(dataset.explain()))


def test_a_repeated_default_gets_an_ordinal() -> None:
    """The second and third use of a function, a shuffle or a lambda, from the source, are #2 and #3.

    An explicit name is in use, too, even one that looks like a numbered one; so is that of a partial's function.
    """
    dataset = ps.range(9).map(double).random_map(draw).map(double).shuffle().random_map(draw).map(double).shuffle()
    assert names(dataset) == ["double", "draw", "double#2", "draw#2", "double#3"]
    assert streams(dataset) == ["draw", "shuffle", "draw#2", "shuffle#2"]
    assert streams(ps.range(9).subset(4).subset(2)) == ["subset", "subset#2"]
    dataset = ps.range(9).map(double, name="double#2").map(functools.partial(functools.partial(double))).map(double)
    assert names(dataset) == ["double#2", "double", "double#3"]
    assert names(ps.range(3).map(LAMBDAS[0]).map(LAMBDAS[1])) == ["<lambda>", "<lambda>#2"]


def test_a_repeated_explicit_name_is_refused() -> None:
    """Two steps of one name would share a stream, so the second is an error; every verb refuses other values.

    A filter draws no random numbers, so its name, which is for messages, may repeat.
    """
    dataset = ps.range(9).map(double, name="mine")
    with pytest.raises(GraphError, match=r"map\(mine\): two steps can't share the name 'mine'; give one of them"):
        dataset.random_map(draw, name="mine")
    with pytest.raises(GraphError, match="can't share the name 'shuffle'"):
        ps.range(9).shuffle().random_map(draw, name="shuffle")
    filtered = ps.range(9).filter(is_odd).filter(is_odd, name="mine").filter(is_odd, name="mine")
    assert repr(filtered).splitlines()[0] == "filter(mine): in order only"
    verbs: list[Any] = [dataset.map, dataset.random_map, dataset.map_with_origin, dataset.filter]
    for name in ("", 5, b"mine"):
        for verb in verbs:
            with pytest.raises(UsageError, match=f"name must be a str of at least one character; got name={name!r}"):
                verb(print, name=name)


class Augmentation:
    """A class whose methods are functions of elements."""

    def flip(self, number: int) -> int:
        """Return the number with its sign changed."""
        return -number


CALLABLES: dict[str, Any] = {
    "double": double,
    "Scale": Scale(3),
    "Augmentation.flip": Augmentation().flip,
    "str": str,
    "divmod": functools.partial(divmod, 7),
    "Scale.__call__": Scale(3).__call__,
}


def test_default_names_are_qualified_names() -> None:
    """Functions, methods and classes have their qualified name, partials their function's, objects their class's."""
    for name, function in CALLABLES.items():
        assert names(ps.range(3).map(function)) == [name]


def test_the_order_of_a_shuffle_derives_from_its_name() -> None:
    """The order is the permutation of derive(seed, "shuffle"), whatever the other steps are."""
    order = ps.sampling.Shuffle(9, derive(5, "shuffle"))
    expected = [order(2, position)[1] for position in range(9)]
    assert list(ps.range(9, seed=5).shuffle().epoch(2)) == expected
    assert list(ps.range(9, seed=5).map(double).reindex(Rotated(9)).shuffle().epoch(2)) != expected
    assert [n // 2 for n in ps.range(9, seed=5).map(double).shuffle().epoch(2)] == expected

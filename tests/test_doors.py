"""Loaders of torch's tensors and of JAX's arrays have the structures, states, errors and arguments of any loader."""

import inspect
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError, UsageError


class Pair(NamedTuple):
    """Two leaves."""

    first: Any
    second: Any


@dataclass
class Record:
    """A leaf and what holds more of them, in a class that no framework knows."""

    image: Any
    more: Any


def door_of(framework: str) -> Any:
    """Return the package for a framework, if that is installed."""
    pytest.importorskip(framework)
    return pytest.importorskip(f"penstock.{framework}")


@pytest.fixture(params=["torch", "jax"])
def door(request: pytest.FixtureRequest) -> Any:
    """Return the package for each framework."""
    return door_of(request.param)


def test_structures_are_kept(door: Any) -> None:
    """Nested dicts, lists, tuples, named tuples, dataclasses and None stay what they are."""

    def element(number: int) -> Any:
        return {"b": Pair(np.full(2, number), [number, (number,)]), "a": Record(np.float32(number), {"x": number})}

    (batch,) = door.Loader(ps.range(2).map(element).batch(2).map(lambda batch: {**batch, "none": None}))
    assert list(batch) == (["b", "a", "none"] if door.__name__ == "penstock.torch" else ["a", "b", "none"])  # JAX sorts
    assert isinstance(batch["b"], Pair)
    assert batch["b"].first.tolist() == [[0, 0], [1, 1]]
    assert batch["b"].second[1][0].tolist() == [0, 1]
    assert isinstance(batch["a"], Record)
    assert str(batch["a"].image.dtype).endswith("float32")
    assert type(batch["a"].more["x"]) is type(batch["a"].image) is not np.ndarray
    assert batch["none"] is None


DATE, LONG, BIG_ENDIAN = (
    np.array(["2020-01-01"], "datetime64[D]"),
    np.zeros(2, np.longdouble),
    np.arange(2).astype(">i4"),
)
LACKING: list[tuple[str, Any, str]] = [
    ("torch", np.array(["a", "b"]), "dtype <U1.*tolist"),
    ("torch", np.array([{}], object), "dtype object.*tolist"),
    ("torch", DATE, r"dtype datetime64\[D\].*view"),
    ("torch", BIG_ENDIAN, "dtype >i4.*newbyteorder"),
    ("torch", LONG, "dtype float128.*tolist"),
    ("torch", np.zeros(2, [("a", int)]), r"dtype \[\('a', '<i8'\)\].*tolist"),
    *(("jax", value, "dtype") for value in (np.array(["a"]), np.array([{}], object), DATE, BIG_ENDIAN, LONG)),
    *(("jax", value, "type") for value in ("text", b"bytes", {1, 2})),
]


@pytest.mark.parametrize(("framework", "value", "words"), LACKING)
def test_a_leaf_that_the_framework_lacks(framework: str, value: Any, words: str) -> None:
    """The error names the leaf, its dtype or type and a remedy; it is raised at its step, and `seek` passes it."""
    dataset = ps.range(3).map(lambda number: {"x": number, "meta": [0, value if number == 1 else number]})
    loader = door_of(framework).Loader(dataset)
    iterator = iter(loader)
    assert next(iterator)["x"] == 0
    with pytest.raises(GraphError, match=rf"^\['meta'\]\[1\] of the batch has the {words}"):
        next(iterator)
    assert loader.state_dict()["step"] == 1
    loader.seek(2)
    assert [int(element["x"]) for element in loader] == [2]


def test_the_state_is_that_of_any_loader(door: Any) -> None:
    """A state goes from a loader of arrays to one of the framework's and back."""
    dataset = ps.range(12, seed=3).shuffle().batch(3)
    expected = [batch.tolist() for batch in ps.Loader(dataset)]
    iterator = iter(door.Loader(dataset))
    assert next(iterator).tolist() == expected[0]
    state = json.loads(json.dumps(iterator.get_state()))
    assert state == ps.Loader(dataset).state_dict(step=1)
    for loader in (ps.Loader(dataset), door.Loader(dataset)):
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == expected[1:]
    assert door.Loader(dataset).batch_at(2).tolist() == expected[2]


def test_arguments_are_those_of_the_loader(door: Any) -> None:
    """Every argument of `penstock.Loader` is there, with its default, and has its effect."""
    ours = inspect.signature(door.Loader.__init__).parameters
    theirs = inspect.signature(ps.Loader.__init__).parameters
    assert {name: (each.kind, each.default) for name, each in theirs.items()} == {
        name: (each.kind, each.default) for name, each in ours.items() if name not in {"device", "sharding", "ahead"}
    }
    with door.Loader(ps.range(8).batch(4), num_workers=1, workers="threads", shard=ps.Shard(1, 2)) as loader:
        assert [batch.tolist() for batch in loader] == [[2, 3], [6, 7]]
        shared = door.Loader(ps.range(4).batch(2), workers=loader)
        assert [batch.tolist() for batch in shared] == [[0, 1], [2, 3]]
    with pytest.raises(UsageError, match="ahead"):
        door.Loader(ps.range(4).batch(2), ahead=-1, **({"device": "meta"} if "device" in ours else {}))

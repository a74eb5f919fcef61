"""Batches of our datasets as torch tensors: the same values, over the same memory, and clear errors elsewhere."""

import inspect
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given

import penstock as ps
from penstock.errors import GraphError, UsageError
from penstock.transport import leased_slots
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched
from tests.trees import map_leaves

torch = pytest.importorskip("torch")
door = pytest.importorskip("penstock.torch")

WHOLE = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
DTYPES = [*WHOLE, "float16", "float32", "float64", "complex64", "complex128"]
LARGE = 1 << 16  # elements of a leaf: large enough to be lent, not copied out


class Pair(NamedTuple):
    """Two leaves."""

    first: Any
    second: Any


@dataclass
class Record:
    """A leaf and what holds more of them."""

    image: Any
    more: Any


def arrays(batch: Any) -> Any:
    """Return a batch with tensors as arrays."""
    return map_leaves(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, batch)


@given(batched())
def test_values_are_those_of_the_arrays(dataset: ps.Dataset) -> None:
    """Any dataset's batches have the definition's structure, dtypes, shapes and bytes."""
    expected = outcomes(epoch_of(dataset, 0))
    if not raised(expected):
        assert [digest(arrays(batch)) for batch in door.Loader(dataset)] == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    """Each dtype that both know becomes the one of the same name."""
    values = np.arange(6).reshape(3, 2).astype(dtype)
    (batch,) = door.Loader(ps.read(list(values)).batch(3))
    assert batch.dtype is getattr(torch, dtype)
    assert digest(batch.numpy()) == digest(values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_ml_dtypes(dtype: str) -> None:
    """Dtypes that NumPy has from elsewhere become torch's of the same name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([0.5, 1, -2], getattr(ml_dtypes, dtype))
    (batch,) = door.Loader(ps.range(1).map(lambda _: values))
    assert batch.dtype is getattr(torch, dtype)
    assert batch.float().tolist() == [0.5, 1, -2]


def test_structures_are_kept() -> None:
    """Nested dicts, lists, tuples, named tuples and dataclasses stay what they are."""

    def element(number: int) -> Any:
        return {"b": Pair(np.full(2, number), [number, (number,)]), "a": Record(np.float32(number), {"x": number})}

    (batch,) = door.Loader(ps.range(2).map(element).batch(2))
    assert list(batch) == ["b", "a"]
    assert isinstance(batch["b"], Pair)
    assert batch["b"].first.tolist() == [[0, 0], [1, 1]]
    assert batch["b"].second[1][0].tolist() == [0, 1]
    assert isinstance(batch["a"], Record)
    assert batch["a"].image.dtype is torch.float32
    assert batch["a"].more["x"].tolist() == [0, 1]


def test_leaves_that_are_not_arrays_are_kept() -> None:
    """Text, bytes, None, Python's numbers and tensors pass unchanged, as in torch's own collation."""
    tensor = torch.ones(2)
    given = {"text": ["a", "b"], "bytes": b"ab", "none": None, "number": 3, "tensor": tensor, "scalar": np.float32(2)}
    (element,) = door.Loader(ps.range(1).map(lambda _: given))
    assert element["tensor"] is tensor
    assert element["scalar"].dtype is torch.float32
    assert {name: element[name] for name in ("text", "bytes", "none", "number")} == {
        name: given[name] for name in ("text", "bytes", "none", "number")
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_writable_views(workers: int) -> None:
    """A tensor is a writable view of the loader's memory, and keeps that memory as long as it exists."""
    dataset = ps.range(8).map(lambda number: np.full(LARGE, number, np.float32)).batch(2)
    before = leased_slots()
    with door.Loader(dataset, num_workers=workers, workers="threads") as loader:
        kept: list[Any] = []
        for batch in loader:
            if workers:
                assert leased_slots() > before
            kept.append(batch.mul_(2)[1, :3])
            del batch
            if len(kept) == 2:
                break
        assert [view.tolist() for view in kept] == [[2, 2, 2], [6, 6, 6]]
    assert [view.tolist() for view in kept] == [[2, 2, 2], [6, 6, 6]]
    kept.clear()


def test_arrays_that_cannot_be_shared_are_copied() -> None:
    """Read-only arrays, and those that run backwards, become tensors of their own, without a warning."""
    frozen = np.arange(4)
    frozen.flags.writeable = False
    fields = np.zeros(3, np.dtype([("a", np.uint8), ("b", np.int32)]))["b"]
    given = {"frozen": frozen, "backwards": np.arange(4)[::-1], "broadcast": np.broadcast_to(1, 3), "field": fields}
    (element,) = door.Loader(ps.range(1).map(lambda _: given))
    assert {name: value.tolist() for name, value in element.items()} == {
        name: value.tolist() for name, value in given.items()
    }
    element["frozen"][0] = 7
    assert frozen[0] == 0


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (np.array(["a", "b"]), "tolist"),
        (np.array([{}], object), "tolist"),
        (np.array(["2020-01-01"], "datetime64[D]"), "view"),
        (np.arange(2).astype(">i4"), "newbyteorder"),
        (np.zeros(2, np.longdouble), "tolist"),
        (np.zeros(2, [("a", int)]), "tolist"),
    ],
)
def test_dtypes_that_torch_lacks(value: Any, remedy: str) -> None:
    """The error names the leaf, its dtype and a remedy; it is raised at its step, and `seek` passes it."""
    dataset = ps.range(3).map(lambda number: {"x": number, "meta": [0, value if number == 1 else number]})
    loader = door.Loader(dataset)
    iterator = iter(loader)
    assert next(iterator)["x"] == 0
    with pytest.raises(GraphError, match=remedy) as caught:
        next(iterator)
    assert str(caught.value).startswith(f"['meta'][1] of the batch has the dtype {value.dtype}")
    assert loader.state_dict()["step"] == 1
    loader.seek(2)
    assert [element["x"] for element in loader] == [2]


def test_the_state_is_that_of_any_loader() -> None:
    """A state goes from a loader of arrays to one of tensors and back."""
    dataset = ps.range(12, seed=3).shuffle().batch(3)
    expected = [batch.tolist() for batch in ps.Loader(dataset)]
    tensors = door.Loader(dataset, device="meta")
    assert next(iter(tensors)).shape == (3,)
    state = json.loads(json.dumps(tensors.state_dict()))
    assert state == ps.Loader(dataset).state_dict(step=1)
    for loader in (ps.Loader(dataset), door.Loader(dataset)):
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == expected[1:]
    assert tensors.batch_at(2).device.type == "meta"
    assert door.Loader(dataset).batch_at(2).tolist() == expected[2]


def test_devices() -> None:
    """A device that torch has is used, and one that it hasn't is refused at once."""
    dataset = ps.range(4).map(lambda number: {"x": number, "text": "a"}).batch(2)
    for batch in door.Loader(dataset, device=torch.device("meta"), ahead=3):
        assert (batch["x"].device.type, batch["x"].dtype, batch["text"]) == ("meta", torch.int64, ["a", "a"])
    assert next(iter(door.Loader(dataset, device="cpu")))["x"].tolist() == [0, 1]
    with pytest.raises(UsageError, match="device must be one that torch finds here; got 'gpu'"):
        door.Loader(dataset, device="gpu")
    with pytest.raises(UsageError, match="ahead"):
        door.Loader(dataset, device="meta", ahead=-1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_device_is_an_error() -> None:
    """A request for CUDA without a device is an error of the call."""
    with pytest.raises(UsageError, match="got 'cuda'"):
        door.Loader(ps.range(4).batch(2), device="cuda")


def test_arguments_are_those_of_the_loader() -> None:
    """Every argument of `penstock.Loader` is there, with its default."""
    ours = inspect.signature(door.Loader.__init__).parameters
    theirs = inspect.signature(ps.Loader.__init__).parameters
    assert {name: (each.kind, each.default) for name, each in theirs.items()} == {
        name: (each.kind, each.default) for name, each in ours.items() if name not in ("device", "ahead")
    }
    with door.Loader(ps.range(8).batch(4), num_workers=1, workers="threads", shard=ps.Shard(1, 2)) as loader:
        assert [batch.tolist() for batch in loader] == [[2, 3], [6, 7]]
        shared = door.Loader(ps.range(4).batch(2), workers=loader)
        assert [batch.tolist() for batch in shared] == [[0, 1], [2, 3]]

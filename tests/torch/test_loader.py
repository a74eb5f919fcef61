"""Batches of our datasets as torch tensors: the same values, over the same memory, and clear errors elsewhere."""

from pathlib import Path
from typing import Any

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


def arrays(batch: Any) -> Any:
    """Return a batch with tensors as arrays."""
    return map_leaves(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, batch)


@given(batched())
def test_values_are_those_of_the_arrays(dataset: ps.Dataset) -> None:
    """Any dataset's batches have the definition's structure, dtypes, shapes and bytes."""
    expected = outcomes(epoch_of(dataset, 0))
    if not raised(expected):
        assert [digest(arrays(batch)) for batch in door.Loader(dataset)] == expected


def loaded(values: Any) -> Any:
    """Return an element as a loader delivers it."""
    (element,) = door.Loader(ps.range(1).map(lambda _: values))
    return element


def test_dtypes() -> None:
    """Each dtype that both know becomes the one of the same name."""
    for dtype in DTYPES:
        values = np.arange(6).reshape(3, 2).astype(dtype)
        (batch,) = door.Loader(ps.read(list(values)).batch(3))
        assert batch.dtype is getattr(torch, dtype)
        assert digest(batch.numpy()) == digest(values)


def test_dtypes_of_ml_dtypes() -> None:
    """Dtypes that NumPy has from elsewhere become torch's of the same name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        values = np.array([0.5, 1, -2], getattr(ml_dtypes, dtype))
        batch = loaded(values)
        assert batch.dtype is getattr(torch, dtype)
        assert batch.float().tolist() == [0.5, 1, -2]


def test_leaves_that_are_not_arrays_are_kept() -> None:
    """Text, bytes, None, Python's numbers and tensors pass unchanged, as in torch's own collation."""
    tensor = torch.ones(2)
    given = {"text": ["a", "b"], "bytes": b"ab", "none": None, "number": 3, "tensor": tensor, "scalar": np.float32(2)}
    (element,) = door.Loader(ps.range(1).map(lambda _: given))
    assert element["tensor"] is tensor
    assert element["scalar"].dtype is torch.float32
    assert all(element[name] == given[name] for name in ("text", "bytes", "none", "number"))


def test_where_arrays_are_needed_the_error_says_how_to_convert_a_tensor(tmp_path: Path) -> None:
    """`pack` and tables take no tensors."""
    tokens = ps.read([{"tokens": torch.arange(3)}])
    with pytest.raises(GraphError, match=r"is a Tensor. Convert it in .map, as in tokens.numpy\(\), or name other"):
        next(iter(tokens.pack(4)))
    with pytest.raises(UsageError, match=r"any type of Arrow. Convert it in a map, as in tensor.numpy\(\)."):
        ps.write(tokens, tmp_path / "table", num_workers=0)


def settings(number: int) -> Any:
    """Return torch's settings."""
    found = torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    return str((torch.linspace(0, number, 3).dtype, *found))


@pytest.mark.parametrize(
    "place",
    [
        {"num_workers": 1, "workers": "threads"},
        {"num_workers": 1, "workers": "processes"},
        pytest.param({"isolated": True}, marks=pytest.mark.long),  # which imports torch again
    ],
)
def test_torch_has_the_settings_of_the_program(place: dict[str, Any]) -> None:
    """Functions compute with torch's settings of the program, wherever they run."""
    dataset = ps.range(1, 2).map(settings).batch(1)
    plain = settings(1)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(mode=True)
    try:
        with door.Loader(dataset, **place) as loader:
            assert list(loader) == [[settings(1)]]
            assert settings(1) != plain
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)


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
    given |= {"one backwards": np.ones((2, 1))[:, ::-1], "one field": fields[:1]}
    (element,) = door.Loader(ps.range(1).map(lambda _: given))
    assert {name: value.tolist() for name, value in element.items()} == {
        name: value.tolist() for name, value in given.items()
    }
    element["frozen"][0] = 7
    assert frozen[0] == 0


def test_masked_arrays_are_refused() -> None:
    """A tensor would lose the mask, so the error names the leaf, as that of a batch does."""
    masked: Any = np.ma
    given = {"a": np.arange(2), "b": masked.array([1, 2], mask=[0, 1])}
    with pytest.raises(GraphError, match=r"'b'.* is a masked array, whose mask a tensor would lose"):
        next(iter(door.Loader(ps.range(1).map(lambda _: given))))


def test_devices() -> None:
    """A device that torch has is used, and one that it hasn't is refused at once."""
    dataset = ps.range(4).map(lambda number: {"x": number, "text": "a"}).batch(2)
    for batch in door.Loader(dataset, device=torch.device("meta"), ahead=3):
        assert (batch["x"].device.type, batch["x"].dtype, batch["text"]) == ("meta", torch.int64, ["a", "a"])
    assert door.Loader(dataset, device="meta").batch_at(1)["x"].device.type == "meta"
    assert next(iter(door.Loader(dataset, device="cpu")))["x"].tolist() == [0, 1]
    for missing in ("gpu", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(UsageError, match=f"device must be one that torch finds here; got '{missing}'"):
            door.Loader(dataset, device=missing)

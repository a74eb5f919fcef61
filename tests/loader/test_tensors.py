"""Tensors of torch, which functions return, are the same wherever they are computed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import in_places

torch: Any = pytest.importorskip("torch")

DTYPES = ("bool", "uint8", "int64", "float32", "uint16", "uint32", "uint64", "bfloat16", "complex64", "float8_e5m2")
EACH = 12  # rows for each kind of batch: enough for several of one form in a row


def _counted(rows: Any) -> Any:
    return torch.from_numpy(np.asarray(rows, np.float32)).repeat_interleave(6).reshape(-1, 2, 3)


def _of_dtype(name: str) -> Callable[[Any], Any]:
    return lambda rows: _counted(rows).to(getattr(torch, name))


Image: Any = type("Image", (torch.Tensor,), {"__module__": __name__})
"""The class of a tensor of its own, as torchvision has some."""


def _with_attribute(rows: Any) -> Any:
    tensor = _counted(rows)
    tensor.origin = "here"
    return [tensor]


def _twice(rows: Any) -> Any:
    tensor = _counted(rows)
    return tensor, tensor


KINDS: dict[str, Callable[[Any], Any]] = {
    **{name: _of_dtype(name) for name in DTYPES},
    "a dict": lambda rows: {"x": _counted(rows), "number": torch.as_tensor(rows), "array": rows},
    "a tuple": lambda rows: (_counted(rows), torch.as_tensor(rows)),
    "a list with a number": lambda rows: [_counted(rows), 3],
    "in a dict in a list": lambda rows: [{"x": _counted(rows)}],
    "of a subclass": lambda rows: _counted(rows).as_subclass(Image),
    "of a subclass, transposed": lambda rows: {"x": _counted(rows).as_subclass(Image).mT},
    "without axes": lambda rows: {"loss": _counted(rows).sum(), "x": _counted(rows)},
    "without axes, alone": lambda rows: _counted(rows).sum(),
    "no rows": lambda rows: _counted(rows)[:0],
    "the same twice": _twice,
    "with an attribute": _with_attribute,
    "transposed": lambda rows: _counted(rows).mT,
    "channels last": lambda rows: _counted(rows)[..., None].to(memory_format=torch.channels_last),
    "sparse": lambda rows: _counted(rows).to_sparse(),
    "of another form for each": lambda rows: _counted(rows)[: int(rows[0]) % 3],
    "of another dtype for each": lambda rows: _counted(rows).to(torch.int32 if rows[0] % 4 else torch.float64),
}
WITH_GAPS: dict[str, Callable[[Any], Any]] = {
    "parts of one": lambda rows: _counted(rows).unbind(1),
    "expanded": lambda rows: torch.as_tensor(rows)[:, None].expand(-1, 4),
    "every second": lambda rows: _counted(rows)[:, :, ::2],
    "unsigned, every second": lambda rows: _counted(rows).to(torch.uint16)[:, :, ::2],
    "of a subclass, every second": lambda rows: _counted(rows).as_subclass(Image)[:, :, ::2],
    "a shift": lambda rows: {"tokens": _counted(rows)[..., :-1], "next": _counted(rows)[..., 1:]},
}
"""Views of memory with gaps, or with items that count several times; they arrive in C order, as arrays do."""
LAZY: dict[str, Callable[[Any], Any]] = {"conjugate": lambda rows: _counted(rows).to(torch.complex64).conj()}
WITH_MORE: dict[str, Callable[[Any], Any]] = {
    "a parameter": lambda rows: torch.nn.Parameter(_counted(rows)),
    "with a gradient": lambda rows: _counted(rows).requires_grad_(),
    "with a gradient, bfloat16": lambda rows: _counted(rows).bfloat16().requires_grad_(),
}


def _by_kind(kinds: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    functions = list(kinds.values())
    return lambda rows: functions[int(rows[0]) // EACH](rows)


def _described(value: Any, *, strides: bool) -> Any:
    """Return a value that is equal for equal batches, with their types, dtypes and, if asked, strides."""
    kind: Any = value.__class__
    if kind is dict:
        return {key: _described(part, strides=strides) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind, [_described(part, strides=strides) for part in value]
    if not issubclass(kind, torch.Tensor):
        return kind, getattr(value, "dtype", None), np.asarray(value).tolist()
    plain = value.detach().to_dense().resolve_conj()
    steps = (value.stride(), value.is_conj()) if strides and value.layout is torch.strided and value.numel() else None
    bits = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return kind, value.dtype, value.layout, value.requires_grad, tuple(value.shape), vars(value), steps, bits


def _compare(dataset: ps.Dataset[Any], kinds: dict[str, Any], place: dict[str, Any], *, strides: bool) -> None:
    expected = [_described(batch, strides=strides) for batch in dataset]
    with ps.Loader(dataset, **place) as loader:
        found = [_described(batch, strides=strides) for batch in loader]
    assert len(found) == len(expected)
    each = len(expected) // len(kinds)
    assert [name for step, name in enumerate(np.repeat(list(kinds), each)) if found[step] != expected[step]] == []


@in_places("inline", "threads", "processes", "isolated")
def test_batches_are_as_a_function_returns_them(place: dict[str, Any]) -> None:
    """A batch has the tensors that the function above it returns, with their strides, attributes and gradients.

    A helper process sends the values of a conjugate.
    """
    kinds = {**KINDS, **WITH_MORE, **({} if "isolated" in place else LAZY)}
    _compare(ps.range(EACH * len(kinds)).batch(3).map(_by_kind(kinds)), kinds, place, strides=True)


@in_places("inline", "threads", "processes", "isolated")
def test_batches_have_the_same_values_everywhere(place: dict[str, Any]) -> None:
    """Also those of views, which arrive in C order."""
    kinds = {**WITH_GAPS, **LAZY}
    _compare(ps.range(EACH * len(kinds)).batch(3).map(_by_kind(kinds)), kinds, place, strides=False)


@in_places("inline", "threads", "processes", "isolated")
def test_elements_are_as_a_function_returns_them(place: dict[str, Any]) -> None:
    """Without a batch, too."""
    kinds = {**KINDS, **WITH_GAPS}
    made = _by_kind(kinds)
    dataset = ps.range(EACH * len(kinds)).map(lambda number: made(np.array([number])))
    _compare(dataset, kinds, place, strides=False)


@in_places("inline", "threads", "processes", "isolated")
def test_rows_are_stacked_like_arrays(place: dict[str, Any]) -> None:
    """Tensors of any strides, and beside arrays: a batch has arrays, of the rows' dtype."""
    forms: dict[str, Callable[[int], Any]] = {
        "tensors": lambda row: _counted([row])[0],
        "unsigned": lambda row: _counted([row])[0].to(torch.uint16),
        "transposed": lambda row: _counted([row])[0].T,
        "in dicts": lambda row: {"x": _counted([row])[0], "y": torch.tensor(row)},
        "beside arrays": lambda row: _counted([row])[0] if row % 3 else _counted([row])[0].numpy(),
    }
    functions = list(forms.values())
    dataset = ps.range(EACH * len(forms)).map(lambda row: functions[row // EACH](row)).batch(3)
    _compare(dataset, forms, place, strides=False)


class Kept:
    """A source that holds its records in one tensor."""

    def __init__(self, name: str) -> None:
        self.records = _counted(np.arange(50)).to(getattr(torch, name))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int) -> Any:
        return self.records[key]


@in_places("inline", "threads", "processes", "isolated")
@pytest.mark.parametrize("name", ["float32", "uint16"])
def test_a_source_may_hold_a_tensor(name: str, place: dict[str, Any]) -> None:
    """Wherever it is sent."""
    source = Kept(name)
    with ps.Loader(ps.read(source).batch(10), **place) as loader:
        rows = [batch.tolist() for batch in loader]
    assert rows == [part.tolist() for part in source.records.split(10)]


@in_places("inline", "threads", "processes", "isolated")
def test_a_write_to_one_batch_is_not_a_write_to_another(place: dict[str, Any]) -> None:
    """Autograd counts the writes to a tensor's memory, and refuses a tensor that was written since it was used."""
    weight = torch.ones(3, requires_grad=True)
    dataset = ps.range(300).batch(3).map(lambda rows: torch.as_tensor(rows, dtype=torch.float32))
    with ps.Loader(dataset, **place) as loader:
        batches = list(loader)
    loss = torch.stack([(weight * batch).sum() for batch in batches[::2]]).sum()
    for batch in batches[1::2]:
        batch.zero_()
    loss.backward()
    assert weight.grad.tolist() == [sum(range(first, 300, 6)) for first in range(3)]


@in_places("processes", "isolated processes")
def test_dtypes_that_a_package_adds_to_numpy_change_nothing(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages such as ml_dtypes add them in this process alone, under names that tensors have, too."""
    dataset = ps.range(6).batch(3).map(lambda rows: _counted(rows).to(torch.float8_e4m3fnuz))
    with ps.Loader(dataset, **place) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        monkeypatch.setitem(np.sctypeDict, "float8_e4m3fnuz", np.uint8)
        found += iterator
    assert [_described(batch, strides=True) for batch in found] == [_described(each, strides=True) for each in dataset]

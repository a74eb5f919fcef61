"""Tensors of torch, which functions return, are the same wherever they are computed."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import in_places

torch: Any = pytest.importorskip("torch")

DTYPES = ("float8_e5m2", "bool", "uint8", "int64", "float32", "uint16", "uint32", "uint64", "bfloat16", "complex64")
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


class Kept:
    """A source that holds its records in one tensor."""

    def __init__(self, name: str) -> None:
        self.records = _counted(np.arange(EACH)).to(getattr(torch, name))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int) -> Any:
        return self.records[key]


ROWS: dict[str, Callable[[int], Any]] = {
    "tensors": lambda row: _counted([row])[0],
    "unsigned": lambda row: _counted([row])[0].to(torch.uint16),
    "transposed": lambda row: _counted([row])[0].T,
    "in dicts": lambda row: {"x": _counted([row])[0], "y": torch.tensor(row)},
    "beside arrays": lambda row: _counted([row])[0] if row % 3 else _counted([row])[0].numpy(),
}
"""Rows that are stacked like arrays: a batch has arrays, of the rows' dtype."""
ALL = {**KINDS, **WITH_MORE, **LAZY, **WITH_GAPS}
PLAIN = {**KINDS, **WITH_GAPS}


def _datasets() -> dict[str, ps.Dataset[Any]]:
    of_row, of_element = list(ROWS.values()), _by_kind(PLAIN)
    return {
        "batch": ps.range(EACH * len(ALL)).batch(3).map(_by_kind(ALL)),
        "element": ps.range(EACH * len(PLAIN)).map(lambda number: of_element(np.array([number]))),
        "rows": ps.range(EACH * len(ROWS)).map(lambda row: of_row[row // EACH](row)).batch(3),
        "source": ps.read(Kept("float32")).batch(3),
        "unsigned source": ps.read(Kept("uint16")).batch(3),
        "counts": ps.range(300).batch(3).map(lambda rows: torch.as_tensor(rows, dtype=torch.float32)),
    }


@in_places("inline", "threads", "processes", "isolated")
def test_tensors_are_the_same_everywhere(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch or an element has the tensors that its function returns, with their strides, attributes and gradients.

    Views with gaps arrive in C order; a helper process sends the values of a conjugate. Dtypes that packages such as
    ml_dtypes add to NumPy, in this process alone, under names that tensors have, too, change nothing.
    """
    if "workers" in place:
        place = {**place, "num_workers": 1}  # each process imports torch
    exact = {**KINDS, **WITH_MORE, **({} if "isolated" in place else LAZY)}
    datasets = _datasets()
    names = {"batch": list(ALL), "element": list(PLAIN), "rows": list(ROWS)}
    is_exact = [name in exact for name in ALL for _ in range(EACH // 3)]
    found: list[Any] = []
    with contextlib.ExitStack() as stack:  # one start for all datasets
        first, *others = [ps.concatenate([*datasets.values()])] if "isolated" in place else datasets.values()
        owner = stack.enter_context(ps.Loader(first, **place))
        for loader in (owner, *(stack.enter_context(ps.Loader(each, workers=owner)) for each in others)):
            for batch in loader:
                found.append(batch)
                monkeypatch.setitem(np.sctypeDict, "float8_e5m2", np.uint8)
    wrong: list[str] = []
    rest = iter(found)
    for kind, dataset in datasets.items():
        for number, expected in enumerate(dataset):
            strides = kind == "batch" and is_exact[number]
            if _described(next(rest), strides=strides) != _described(expected, strides=strides):
                named = names.get(kind, [""])
                wrong.append(f"{kind} {number}: {named[number * len(named) // len(dataset)]}")
    assert (wrong, list(rest)) == ([], [])
    _write_to_every_second(found[-100:])


def _write_to_every_second(batches: list[Any]) -> None:
    """Autograd counts the writes to a tensor's memory, and refuses one that was written since it was used."""
    weight = torch.ones(3, requires_grad=True)
    loss = torch.stack([(weight * batch).sum() for batch in batches[::2]]).sum()
    for batch in batches[1::2]:
        batch.zero_()
    loss.backward()
    assert weight.grad.tolist() == [sum(range(first, 300, 6)) for first in range(3)]

"""Tensors of which NumPy has no arrays are elements like others: a dataset of them can be checked and shown."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import penstock as ps

TENSORS: dict[str, Callable[[int], Any]] = {
    "bfloat16": lambda number: torch.full((3,), number, dtype=torch.bfloat16),
    "NaN": lambda number: torch.tensor([number, float("nan")], dtype=torch.bfloat16),
    "gradient": lambda number: torch.full((3,), float(number), requires_grad=True),
    "conjugate": lambda number: torch.full((3,), number, dtype=torch.complex64).conj(),
    "parameter": lambda number: torch.nn.Parameter(torch.full((3,), float(number))),
    "sparse": lambda number: torch.full((2, 2), number).to_sparse(),
    "quantized": lambda number: torch.quantize_per_tensor(torch.full((3,), float(number)), 0.1, 0, torch.quint8),
    "without memory": lambda number: torch.full((3,), number, device="meta"),
}
STORED = ["bfloat16", "gradient", "conjugate", "parameter"]


def made(number: int) -> dict[str, Any]:
    """Return an element with a tensor of each kind."""
    return {"n": number, **{name: make(number) for name, make in TENSORS.items()}}


def with_nested(element: dict[str, Any]) -> dict[str, Any]:
    """Return the element with a nested tensor, which torch can't copy."""
    nested_tensor: Callable[[list[torch.Tensor]], torch.Tensor] = vars(torch.nested)["nested_tensor"]
    return {**element, "nested": nested_tensor([torch.ones(1), torch.ones(2)])}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:.*quantize_per_tensor", "ignore:TypedStorage")
def test_a_dataset_of_tensors_is_checked_and_shown() -> None:
    """A step that makes equal tensors passes the check; texts have at least the names of their types."""
    dataset = ps.range(4).map(made)
    dataset.check(1)
    shown = dataset.map(with_nested)
    assert "['n']: 0" in str(shown.show(1))
    assert "with_nested" in str(shown.explain())
    for each in (shown, shown.batch(2, merge=list)):
        assert "step 1, epoch 0" in str(ps.Loader(each).look(1))


@pytest.mark.parametrize("name", STORED)
def test_the_check_finds_tensors_that_differ(name: str) -> None:
    """Of those whose items are in the host's memory, the items are compared."""
    calls: list[int] = []

    def counted(number: int) -> Any:
        calls.append(number)
        return TENSORS[name](len(calls))

    with pytest.raises(ps.errors.GraphError, match="isn't a function of its input"):
        ps.range(4).map(counted).check(1)

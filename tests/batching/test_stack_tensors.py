"""Tensors of torch are stacked as their arrays are, without an array of each."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._tree import is_array
from penstock.batching import Pad, layout_of, pad, stack, stack_arrays, write_rows
from penstock.errors import UsageError

torch: Any = pytest.importorskip("torch")

WITH_ARRAYS = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
LARGE = 3 << 20  # three such rows are enough for two threads
HAS_TABLE = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no table of DLPack's C functions"
)
Tensor = Any


def counted(dtype: str, shape: Sequence[int], start: int) -> Tensor:
    """Return a tensor of a dtype that begins with a number."""
    size = int(np.prod(shape))
    return (torch.arange(start, start + size) % 97).to(getattr(torch, dtype)).reshape(tuple(shape))


def transposed(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and values whose axes are in the other order in memory."""
    axes = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(axes).contiguous().permute(axes)


def with_gaps(tensor: Tensor) -> Tensor:
    """Return every second item of another tensor, with the same shape and values."""
    return torch.stack([tensor, tensor], -1)[..., 0]


def expanded(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape, whose items are one item in memory."""
    return tensor.reshape(-1)[:1].expand(tensor.numel()).reshape(1, -1)[0].as_strided(tensor.shape, [0] * tensor.ndim)


def negative(tensor: Tensor) -> Tensor:
    """Return a tensor whose values are the negatives of its memory, where its dtype allows that."""
    return torch.complex(tensor, tensor).conj().imag if tensor.dtype in {torch.float32, torch.float64} else tensor


def resized_negative(tensor: Tensor) -> Tensor:
    """Return the same, C-contiguous."""
    found = negative(tensor)
    return found.as_strided(found.shape, tensor.contiguous().stride()) if found.is_neg() else tensor


ARRANGED: Sequence[Callable[[Tensor], Tensor]] = (torch.clone, transposed, with_gaps, expanded)
ODD: dict[str, Callable[[Tensor], Any]] = {
    "a gradient": lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
    "negative": negative,
    "negative, contiguous": resized_negative,
    "conjugate": torch.conj,
    "another dtype": lambda tensor: torch.zeros(
        tensor.shape, dtype=torch.int32 if tensor.dtype != torch.int32 else torch.int64
    ),
    "another shape": lambda tensor: tensor[None],
    "a parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "sparse": lambda tensor: torch.zeros(tensor.shape).to_sparse(),
    "bfloat16": lambda tensor: torch.zeros(tensor.shape, dtype=torch.bfloat16),
    "on no device": lambda tensor: tensor.to("meta"),
    "an array": lambda tensor: tensor.numpy(),
    "a number": lambda _: 3,
}


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[Any]:
    """Lists of tensors of one dtype and shape, of any arrangement in memory; in some, one item is odd."""
    dtype = draw(st.sampled_from(WITH_ARRAYS.split()))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    arrange = st.sampled_from(ARRANGED) if 0 not in shape else st.just(torch.clone)
    items = [draw(arrange)(counted(dtype, shape, 10 * row)) for row in range(draw(st.integers(1, 5)))]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(items) - 1))
        items[place] = ODD[draw(st.sampled_from(list(ODD)))](items[place].clone())
    return items


def outcome(merge: Callable[[list[Any]], Any], items: list[Any]) -> object:
    """Return the bytes of a batch with its dtype and shape, or the class of the error."""
    try:
        merged = merge(items)
    except (UsageError, RuntimeError, TypeError, NotImplementedError) as error:
        return type(error)
    return (merged.dtype, merged.shape, merged.tobytes()) if is_array(merged) else merged


@given(tensor_lists(), st.integers(1, 2))
def test_tensors_are_stacked_as_the_definition_stacks_them(items: list[Any], num_threads: int) -> None:
    """The bytes, or the class of the error, are those of `stack`, which makes an array of each tensor."""
    found = outcome(lambda rows: stack_arrays(rows, num_threads=num_threads), items)
    assert found == outcome(stack, items)


def test_an_odd_tensor_among_others() -> None:
    """A tensor whose values aren't those in its memory is stacked, or refused, as the definition does it."""
    for (name, odd), dtype in itertools.product(ODD.items(), ("float32", "complex64", "int64")):
        items = [counted(dtype, (3,), 0), odd(counted(dtype, (3,), 10)), counted(dtype, (3,), 20)]
        assert outcome(stack_arrays, items) == outcome(stack, items), (name, dtype)


def test_tensors_of_dtypes_that_numpy_lacks_are_refused() -> None:
    """The error has the leaf, its dtype and the remedies; torch's own has neither."""
    for merge, dtype in ((stack, "bfloat16"), (pad, "float8_e5m2")):
        rows = [{"x": torch.zeros(3).to(getattr(torch, dtype))}] * 2
        text = rf"\['x'\] of row 0 is a tensor of dtype torch\.{dtype}, which NumPy .*merge=…"
        with pytest.raises(UsageError, match=text):
            merge(rows)


@given(tensor_lists(), st.lists(st.integers(0, 4), min_size=5, max_size=5))
def test_tensors_are_padded_as_the_definition_pads_them(items: list[Any], lengths: list[int]) -> None:
    """The bytes, or the class of the error, are those of `pad`, which makes an array of each tensor."""
    rows = [
        item[:length] if torch.is_tensor(item) and item.ndim and not item.is_sparse else item
        for item, length in zip(items, lengths, strict=False)
    ]
    assert outcome(Pad(), rows) == outcome(pad, rows)


@HAS_TABLE
@pytest.mark.parametrize(
    ("dtype", "arrange"),
    [("bool", torch.clone), ("float16", transposed), ("int64", torch.clone), ("float32", transposed)],
)
def test_no_array_is_made_of_a_tensor(
    dtype: str, arrange: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors are read by DLPack's functions alone: an array takes longer than most copies."""
    rows = [arrange(counted(dtype, (2, 3), row)) for row in range(4)]
    expected = np.stack([row.numpy() for row in rows])
    layout = layout_of(rows[0])
    assert layout is not None
    columns = layout.columns(len(rows))

    def refuse(*_: object) -> None:
        raise AssertionError("an array was made")

    monkeypatch.setattr(torch.Tensor, "numpy", refuse)
    monkeypatch.setattr(torch.Tensor, "__array__", refuse)
    write_rows(layout, rows, columns, 0)
    assert layout.batch(columns).tobytes() == expected.tobytes()


def test_large_tensors_are_copied_by_threads() -> None:
    """The rows of several megabytes are divided among threads."""
    rows = [counted("uint8", (LARGE,), row) for row in range(3)]
    assert stack_arrays(rows, num_threads=2).tobytes() == b"".join(row.numpy().tobytes() for row in rows)


def test_a_tensor_may_be_its_own_row_and_must_not_overlap_others() -> None:
    """A tensor over the result's own row stays; one over another row is refused, as arrays are."""
    out = np.zeros((3, 4), np.float32)
    rows = torch.from_numpy(out).unbind()
    rows[1].fill_(5)
    assert stack_arrays(list(rows), out=out)[:, 0].tolist() == [0, 5, 0]
    with pytest.raises(UsageError, match="no array may overlap out, except as its own row; row 1 does"):
        stack_arrays([rows[0], rows[0], rows[2]], out=out)

"""Torch tensors on the host arrive as tensors, without pickle."""

from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from tests.transport.encoding.samples import ITEM_BYTES, LARGEST_COPIED_BYTES, Ends, crossed, message_of, written

torch: Any = pytest.importorskip("torch")


def _tensor(name: str, *shape: int) -> Any:
    """Return a tensor of a dtype, with bytes that differ."""
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.tensor([number % (2 if name == "bool" else 120) for number in range(count)], dtype=torch.uint8)
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def _raw(tensor: Any) -> bytes:
    whole = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor.resolve_conj().resolve_neg()
    flat = whole.clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _assert_same(sent: Any, received: Any) -> None:
    assert type(received) is torch.Tensor
    assert (sent.dtype, sent.shape) == (received.dtype, received.shape)
    assert _raw(sent) == _raw(received)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_of_every_dtype_arrive() -> None:
    """Every dense dtype arrives in dtype, shape and bytes; empty, without dimensions, small, large, and as a view."""
    for name, item_bytes in ITEM_BYTES.items():
        view, memory = _tensor(name, 2, 300).T, bytearray(_raw(_tensor(name, 2, 300)))
        for copy in (False, True):
            for shape in [(), (0, 3), (2, 3)]:
                tensor = _tensor(name, *shape)
                _assert_same(tensor, crossed({"t": tensor}, copy=copy)["t"])
            ends = Ends(locate=lambda _address, _size: 0)
            _assert_same(view, ends.received(ends.sent(view), [memoryview(memory)], copy=copy))
        for sent in (view, _tensor(name, LARGEST_COPIED_BYTES // item_bytes + 8)):
            _assert_same(sent, crossed(sent))
        assert getattr(torch, name).itemsize == item_bytes


def test_views_arrive_as_their_values() -> None:
    """Tensors that are not contiguous, conjugated or negated lazily, or expanded arrive as what they show."""
    whole = torch.arange(24.0).reshape(2, 3, 4)
    complexes = torch.complex(torch.arange(3.0), torch.ones(3))
    for tensor in [
        whole.transpose(0, 2),
        whole[:, 1:, ::2],
        complexes.conj(),
        complexes.conj().imag,
        torch.ones(1).expand(4),
        torch.arange(4.0)[::2][:1],  # contiguous by torch's definition, with a stride of 2
        whole[1:, 2:, ::4].transpose(0, 2),
    ]:
        _assert_same(tensor, crossed(tensor))


def test_large_tensors_are_views_of_the_memory() -> None:
    """A large tensor is in the memory, and keeps it alive; over read-only memory it is a copy."""
    ends = Ends()
    message = ends.sent([torch.zeros(LARGEST_COPIED_BYTES)])
    memory = written(message)
    received: Any = ends.decode(message.head, memory)
    memory[:4] = np.frombuffer(np.float32(7).tobytes(), np.uint8)
    assert received[0][0] == 7
    readonly: Any = ends.decode(message.head, bytes(memory))
    readonly[0][0] = 8
    assert received[0][0] == 7


def test_located_tensors_are_sent_by_reference() -> None:
    """A tensor in shared memory is not copied, in C order or in another."""
    shared: Any = np.zeros(400_000, np.uint8)
    tensor = torch.from_numpy(shared).view(torch.float32).reshape(-1, 10)

    def locate(address: int, nbytes: int) -> object | None:
        start = address - shared.ctypes.data
        return start if 0 <= start <= shared.nbytes - nbytes else None

    ends = Ends(locate=locate)
    message = ends.sent([tensor[100:], tensor.T, torch.zeros(3)])
    assert message.places == (4000, 0)
    received: Any = ends.received(message, [memoryview(shared)[4000:], memoryview(shared)])
    tensor[100, 0] = 5
    assert received[0][0, 0] == received[1][0, 100] == 5
    assert received[1].shape == (10, 10_000)


def with_scale() -> Any:
    """Return a tensor with an attribute."""
    tensor = torch.zeros(2)
    tensor.scale = 3
    return tensor


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_other_tensors_are_refused() -> None:
    """A tensor that isn't dense is refused, with its path and a remedy."""
    for tensor, message in [
        (torch.zeros(2, requires_grad=True), r"\['t'\] is a tensor that requires_grad.*\.detach\(\)"),
        (torch.zeros(2).to_sparse(), r"\['t'\] is a tensor of layout torch\.sparse_coo; .*to_dense"),
        (torch.nested.nested_tensor([torch.ones(2)]), r"\['t'\] is a nested tensor; .*unbind"),
        (torch.zeros(2, device="meta"), r"\['t'\] is a tensor on the device 'meta'; .*\.cpu\(\)"),
        (torch.nn.Parameter(torch.zeros(2), requires_grad=False), r"\['t'\] is a Parameter; .*as_subclass"),
        (with_scale(), r"\['t'\] is a tensor with attributes \('scale'\); send \.detach\(\)"),
    ]:
        with pytest.raises(UsageError, match=message):
            message_of({"t": tensor})


def test_other_tensors_may_be_pickled() -> None:
    """With consent, a sparse tensor arrives sparse; attributes are kept, and so is requires_grad."""
    sparse = torch.tensor([0.0, 3.0]).to_sparse()
    received = crossed([sparse], allow_pickle=True)[0]
    assert received.layout == torch.sparse_coo
    assert received.to_dense().tolist() == [0, 3]
    assert crossed([with_scale()], allow_pickle=True)[0].scale == 3
    wanted = torch.ones(2, requires_grad=True)
    for tensor in (wanted, wanted * 3):
        received = crossed(tensor, allow_pickle=True)
        assert received.requires_grad
        assert received.tolist() == tensor.tolist()

"""Torch tensors arrive as tensors, without pickle; those on a device by their handles."""

import multiprocessing
import re
from typing import Any

import numpy as np
import pytest

from penstock.errors import MessageError, UsageError
from penstock.transport._encoding import LARGEST_COPIED_BYTES, Decoder, Encoder
from penstock.transport._encoding._torch_tensors import ITEM_BYTES
from tests.transport.encoding.samples import crossed, written

torch: Any = pytest.importorskip("torch")


def _tensor(name: str, *shape: int) -> Any:
    """Return a tensor of a dtype whose bytes are not alike."""
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.tensor([number % (2 if name == "bool" else 120) for number in range(count)], dtype=torch.uint8)
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def _raw(tensor: Any) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _assert_same(sent: Any, received: Any) -> None:
    assert type(received) is torch.Tensor
    assert (sent.dtype, sent.shape) == (received.dtype, received.shape)
    assert _raw(sent) == _raw(received)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("name", ITEM_BYTES)
def test_tensors_of_every_dtype_arrive(name: str, copy: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    """Every dense dtype arrives in dtype, shape and bytes; empty, without dimensions, small and large."""
    for shape in [(), (0, 3), (5,), (2, 3), (LARGEST_COPIED_BYTES + 8,)]:
        tensor = _tensor(name, *shape)
        _assert_same(tensor, crossed({"t": tensor}, copy=copy)["t"])
    assert getattr(torch, name).itemsize == ITEM_BYTES[name]


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
    ]:
        _assert_same(tensor, crossed(tensor))


def test_large_tensors_are_views_of_the_memory() -> None:
    """A large tensor lies in the memory, and keeps it alive; over read-only memory it is a copy."""
    encoded = Encoder().encode([torch.zeros(LARGEST_COPIED_BYTES)])
    memory = written(encoded)
    decoder = Decoder()
    decoder.learn(encoded.description or b"")
    received: Any = decoder.decode(encoded.head, memory, ())
    memory[:4] = np.frombuffer(np.float32(7).tobytes(), np.uint8)
    assert received[0][0] == 7
    readonly: Any = decoder.decode(encoded.head, bytes(memory), ())
    readonly[0][0] = 8
    assert received[0][0] == 7


def test_located_tensors_are_sent_by_reference() -> None:
    """A tensor in shared memory is not copied, in C order or in another."""
    shared: Any = np.zeros(400_000, np.uint8)
    tensor = torch.from_numpy(shared).view(torch.float32).reshape(-1, 10)

    def locate(address: int, nbytes: int) -> object | None:
        start = address - shared.ctypes.data
        return start if 0 <= start <= shared.nbytes - nbytes else None

    encoder, decoder = Encoder(locate=locate), Decoder()
    encoded = encoder.encode([tensor[100:], tensor.T, torch.zeros(3)])
    assert encoded.places == (4000, 0)
    decoder.learn(encoded.description or b"")
    received: Any = decoder.decode(encoded.head, written(encoded), [memoryview(shared)[4000:], memoryview(shared)])
    tensor[100, 0] = 5
    assert received[0][0, 0] == received[1][0, 100] == 5
    assert received[1].shape == (10, 10_000)


def _subclass() -> Any:
    return torch.nn.Parameter(torch.zeros(2), requires_grad=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(2, requires_grad=True), r"\['t'\] is a tensor that requires_grad.*\.detach\(\)"),
        (lambda: torch.zeros(2).to_sparse(), r"\['t'\] is a tensor of layout torch\.sparse_coo; .*to_dense"),
        (lambda: torch.zeros(2, device="meta"), r"\['t'\] is a tensor on the device 'meta'; .*\.cpu\(\)"),
        (_subclass, r"\['t'\] is a Parameter; .*as_subclass"),
    ],
    ids=["grad", "sparse", "meta", "subclass"],
)
def test_other_tensors_are_refused(make: Any, message: str) -> None:
    """What is no dense tensor of values is refused by its path, with what to do."""
    with pytest.raises(UsageError, match=message):
        Encoder().encode({"t": make()})


def test_other_tensors_may_be_pickled() -> None:
    """With consent, a sparse tensor arrives sparse; one that requires_grad is refused even so."""
    sparse = torch.tensor([0.0, 3.0]).to_sparse()
    received = crossed([sparse], allow_pickle=True)[0]
    assert received.layout == torch.sparse_coo
    assert received.to_dense().tolist() == [0, 3]
    with pytest.raises(UsageError, match="requires_grad"):
        Encoder(allow_pickle=True).encode(torch.zeros(2, requires_grad=True))


class _Storage:
    """What stands at torch's boundary to CUDA: it records what is waited for, shared and opened."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def synchronize(self) -> None:
        """Stand for the stream's own."""
        self.calls.append("synchronize")

    def current_stream(self, _device: object) -> "_Storage":
        """Stand for `torch.cuda.current_stream`."""
        return self

    def on_host(self, _tensor: object) -> bool:
        """Let every tensor be on a device."""
        return False

    def reduce_tensor(self, tensor: Any) -> tuple[Any, tuple[Any, ...]]:
        """Stand for `torch.multiprocessing.reductions.reduce_tensor`."""
        self.calls.append("share")
        arguments: tuple[Any, ...] = (
            torch.Tensor,
            tensor.size(),
            tensor.stride(),
            tensor.storage_offset(),
            torch.storage.TypedStorage,
        )
        handles = (3, b"h" * 64, 4096, 512, False, b"/torch_1_2_3", 7, b"e" * 64, True)
        return None, (*arguments, tensor.dtype, *handles)

    def rebuild_cuda_tensor(self, *arguments: Any) -> Any:
        """Stand for `torch.multiprocessing.reductions.rebuild_cuda_tensor`."""
        self.calls.append(arguments)
        return torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> _Storage:
    """Return the boundary, put in torch's place; every tensor is on a device."""
    from penstock.transport._encoding import _torch_tensors  # noqa: PLC0415 - only where torch is there

    fake = _Storage()
    monkeypatch.setattr(torch.multiprocessing.reductions, "reduce_tensor", fake.reduce_tensor)
    monkeypatch.setattr(torch.multiprocessing.reductions, "rebuild_cuda_tensor", fake.rebuild_cuda_tensor)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.current_stream)
    monkeypatch.setattr(_torch_tensors, "on_host", fake.on_host)
    return fake


def _other_process(head: bytes) -> bytes:
    """Return a head as if another process had written it."""
    return re.sub(rb'"token":"[0-9a-f]{16}"', b'"token":"0000000000000000"', head)


def test_device_tensors_go_by_their_handles(storage: _Storage) -> None:
    """The stream is waited for before the tensor is shared; the receiver opens it with the very same arguments."""
    tensor = torch.zeros(2, 3)
    encoder, decoder = Encoder(allow_pickle=True), Decoder(allow_pickle=True)
    encoded = encoder.encode({"a": 5, "t": tensor, "u": tensor})
    assert storage.calls == ["synchronize", "share"] * 2
    assert encoded.size_bytes == 0
    assert encoder.encode({"a": 5, "t": tensor, "u": tensor}).description is None
    decoder.learn(encoded.description or b"")
    storage.calls.clear()
    received: Any = decoder.decode(_other_process(encoded.head), b"", ())
    assert received["t"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (
        storage.calls
        == [
            (
                torch.Tensor,
                torch.Size([2, 3]),
                (3, 1),
                0,
                torch.storage.TypedStorage,
                torch.float32,
                3,
                b"h" * 64,
                4096,
                512,
                False,
                b"/torch_1_2_3",
                7,
                b"e" * 64,
                True,
            )
        ]
        * 2
    )


def test_a_process_cant_receive_its_own_device_tensor(storage: _Storage) -> None:
    """CUDA would crash on it, so that it is an error before torch is asked."""
    encoded = Encoder(allow_pickle=True).encode(torch.zeros(2))
    decoder = Decoder(allow_pickle=True)
    decoder.learn(encoded.description or b"")
    storage.calls.clear()
    with pytest.raises(UsageError, match="can't receive its own CUDA message"):
        decoder.decode(encoded.head, b"", ())
    assert storage.calls == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape":[2]', b'"shape":[9999]'),
        (b'"stride":[1]', b'"stride":[-1]'),
        (b'"dtype":"float32"', b'"dtype":"Tensor"'),
        (b'"device":3', b'"device":"x"'),
        (b'"handle":"68', b'"handle":"zz'),
        (b'"must_wait":true', b'"must_wait":1'),
        (b'"offset":0', b'"offset":2000'),
        (b'"event"', b'"other"'),
    ],
    ids=lambda text: text.decode(),
)
def test_damaged_handles_are_message_errors(storage: _Storage, old: bytes, new: bytes) -> None:
    """Handles that couldn't have been written, or reach out of their storage, never get to torch."""
    encoded = Encoder(allow_pickle=True).encode(torch.zeros(2))
    decoder = Decoder(allow_pickle=True)
    decoder.learn(encoded.description or b"")
    storage.calls.clear()
    start = encoded.head.index(b"{")
    tail = _other_process(encoded.head)[start:]
    assert old in tail
    tail = tail.replace(old, new)
    with pytest.raises(MessageError):
        decoder.decode(encoded.head[: start - 8] + len(tail).to_bytes(8, "little") + tail, b"", ())
    assert storage.calls == []


@pytest.mark.usefixtures("storage")
def test_device_tensors_need_consent_on_both_sides() -> None:
    """Neither shares nor opens device memory unless it may."""
    with pytest.raises(UsageError, match=r"\[0\] is a CUDA tensor.*\.cpu\(\).*allow_pickle=True"):
        Encoder().encode([torch.zeros(2)])
    encoded = Encoder(allow_pickle=True).encode([torch.zeros(2)])
    decoder = Decoder()
    decoder.learn(encoded.description or b"")
    with pytest.raises(MessageError, match="allow_pickle=True"):
        decoder.decode(encoded.head, b"", ())


def _receive(messages: Any, answers: Any) -> None:
    """Be the other process of the test below."""
    description, head = messages.recv()
    decoder = Decoder(allow_pickle=True)
    decoder.learn(description)
    received: Any = decoder.decode(head, b"", ())
    answers.send(received[0].sum().item())
    del received


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_tensor_is_opened_by_another_process() -> None:
    """What one process computed on a GPU, another reads there."""
    spawn = multiprocessing.get_context("spawn")
    (messages, to_child), (from_child, answers) = spawn.Pipe(duplex=False), spawn.Pipe(duplex=False)
    child = spawn.Process(target=_receive, args=(messages, answers))
    child.start()
    tensor = torch.ones(1000, device="cuda") * 3
    encoded = Encoder(allow_pickle=True).encode([tensor])
    to_child.send((encoded.description, encoded.head))
    assert from_child.recv() == 3000
    child.join()

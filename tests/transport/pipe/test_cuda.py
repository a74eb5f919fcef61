"""Tensors on CUDA devices go through slots there, and streams wait for one another.

Where there is no GPU, only the tests over a stand-in for torch's interface to CUDA run: they see what is waited for and
recorded in which order, and not whether a device does it.
"""

import json
import multiprocessing
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from penstock import _tensors
from penstock.errors import MessageError, UsageError
from penstock.transport import TensorPipeReader, TensorPipeWriter
from penstock.transport._encoding import _device_tensors
from tests.transport.pipe.device_senders import LARGE, send_computed, send_without_waiting

torch: Any = pytest.importorskip("torch")

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class _Stream:
    """A stream that writes down what it is given."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self.name, self.device = log, name, 0

    def wait_event(self, event: "_Event") -> None:
        self._log.append(f"{self.name} waits for {event.name}")

    def wait_stream(self, other: "_Stream") -> None:
        self._log.append(f"{self.name} waits for {other.name}")


class _Event:
    """An event, which another process would know by its handle."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self.name = log, name

    def record(self, stream: _Stream) -> None:
        self._log.append(f"{stream.name} records {self.name}")

    def ipc_handle(self) -> bytes:
        return self.name.encode()


class _Array:
    """An object of which NumPy, and with it torch, makes an array that keeps a loan."""

    def __init__(self, loan: Any) -> None:
        self.loan = loan
        self.__array_interface__ = loan.__cuda_array_interface__


class _Device:
    """A stand-in for torch in `_device_tensors`: memory of device 0 is the host's, and both ends are one process.

    Attributes:
        log: what streams did, in order.
        stream: the one that is current.
        slots: how many were made.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stream = _Stream(self.log, "stream")
        self.slots = 0
        self.events = 0
        self._memory: dict[bytes, Any] = {}
        self.cuda = self.multiprocessing = self.reductions = self
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @contextmanager
    def device(self, _device: int) -> Generator[None]:
        yield

    def current_stream(self, _device: int) -> _Stream:
        return self.stream

    def empty(self, shape: Any, *, dtype: Any, device: str) -> Any:
        assert device == "cuda:0"
        return torch.empty(shape, dtype=dtype)

    def as_tensor(self, loan: Any, *, device: str) -> Any:
        assert device == "cuda:0"
        return torch.from_numpy(np.asarray(_Array(loan)))

    @property
    def Event(self) -> Any:  # noqa: N802 - torch's name
        return _Events(self)

    def reduce_tensor(self, tensor: Any) -> tuple[Any, tuple[Any, ...]]:
        if self.failure is not None:
            raise self.failure
        handle = b"memory %d" % self.slots
        self.slots += 1
        self._memory[handle] = tensor
        described = (torch.Tensor, tensor.size(), tensor.stride(), 0, torch.storage.TypedStorage, tensor.dtype)
        return None, (*described, 0, handle, tensor.numel(), 0, False, b"counter", 7, b"event", True)

    def rebuild_cuda_tensor(self, *arguments: Any) -> Any:
        _, size, stride, offset, _, dtype, device, handle, size_bytes, *rest = arguments
        memory = self._memory[handle]
        assert (size, stride, offset, dtype, device) == (memory.size(), (1,), 0, torch.uint8, 0)
        assert (size_bytes, rest) == (memory.numel(), [0, False, b"counter", 7, b"event", True])
        self.log.append(f"opens {handle.decode()}")
        return memory


class _Events:
    """The class of events: called, it makes one."""

    def __init__(self, device: _Device) -> None:
        self._device = device

    def __call__(self, *, interprocess: bool) -> _Event:
        assert interprocess
        slot, which = divmod(self._device.events, 2)
        self._device.events += 1
        return _Event(self._device.log, f"{('filled', 'released')[which]} {slot}")

    def from_ipc_handle(self, _device: object, handle: bytes) -> _Event:
        return _Event(self._device.log, handle.decode())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    """Return the stand-in, in torch's place; every tensor is on device 0, and slots are as of another process."""
    made = _Device()
    checked: Callable[[object], dict[str, object]] = vars(_device_tensors)["_checked"]

    def of_another_process(shared: object) -> dict[str, object]:
        return {**checked(shared), "token": "another process"}

    def module() -> _Device:
        return made

    def on_host(_tensor: object) -> bool:
        return False

    def get_device(_tensor: object) -> int:
        return 0

    monkeypatch.setattr(_device_tensors, "torch_module", module)
    monkeypatch.setattr(_tensors, "on_host", on_host)
    monkeypatch.setattr(torch.Tensor, "get_device", get_device)
    monkeypatch.setattr(_device_tensors, "_checked", of_another_process)
    return made


def unchanged(shared: object) -> object:
    """Take a slot's handles as they are."""
    return shared


@contextmanager
def pipe(
    *, copy: bool = False, max_bytes: int | None = None, capacity: int = 2
) -> Generator[tuple[TensorPipeReader, TensorPipeWriter]]:
    """Open a pipe within this process, whose ends trust each other."""
    with (
        TensorPipeReader(allow_pickle=True, copy=copy) as reader,
        TensorPipeWriter(reader.address, allow_pickle=True, max_bytes=max_bytes, capacity=capacity) as writer,
    ):
        yield reader, writer


def test_streams_wait_and_hosts_do_not(device: _Device) -> None:
    """A slot is opened once; each side's stream waits for the other's event, and the slot is filled again."""
    with pipe() as (reader, writer):
        for step in range(3):
            writer.send({"x": torch.full((2, 3), float(step)), "step": step})
            received = reader.receive()
            assert received["x"].tolist() == [[step] * 3] * 2
            assert received["step"] == step
            row = received["x"][1]
            del received
            assert "records released" not in device.log[-1]
            del row
        assert writer.counters.copied_bytes == 3 * 24
        assert writer.counters.shared_bytes == 0
    turn = ["stream waits for filled 0", "stream waits for released 0", "stream records filled 0"]
    used = ["stream waits for filled 0", "stream records released 0"]
    assert device.log == [*turn, "opens memory 0", *used, *turn, *used, *turn, *used]


def test_a_slot_in_use_is_left_alone(device: _Device) -> None:
    """While the reader keeps a tensor, the next ones go to other slots; one larger than all gets a larger one."""
    with pipe(capacity=10) as (reader, writer):
        kept: list[Any] = []
        for step in range(4):
            writer.send([torch.full((5,), step), torch.full((7,), -step, dtype=torch.bfloat16)])
            kept.append(reader.receive())
        assert device.slots == 4
        assert [(int(each[0][-1]), int(each[1][0])) for each in kept] == [(0, 0), (1, -1), (2, -2), (3, -3)]
        del kept[1:]
        writer.send(torch.arange(1 << 19))  # 4 MB, and slots have at least 1
        assert reader.receive()[-1] == (1 << 19) - 1
        assert device.slots == 5
        assert int(kept[0][0][0]) == 0
        kept.clear()


def test_views_of_any_kind_arrive_as_their_values(device: _Device) -> None:
    """Strided, conjugated, empty and 0-d tensors of each dtype come in one piece, and may be written to."""
    sent = [
        *(torch.arange(24).reshape(4, 6).T[::2], torch.tensor([1 + 2j]).conj(), torch.empty(0, 3), torch.tensor(7)),
        *(torch.arange(3.0).expand(2, 3), torch.tensor([True, False]), torch.arange(4).to(torch.float16)),
    ]
    with pipe() as (reader, writer):
        writer.send(sent)
        received = reader.receive()
        assert [there.dtype for there in received] == [here.dtype for here in sent]
        assert [there.tolist() for there in received] == [here.resolve_conj().tolist() for here in sent]
        received[0].zero_()
        del received
    assert device.slots == 1


def test_a_slot_is_released_behind_its_last_use(device: _Device) -> None:
    """A tensor that is dropped on another stream than that of its receipt is released after both.

    With `copy=True` the tensor is the reader's own, and the slot is released behind the copy.
    """
    with pipe() as (reader, writer):
        writer.send(torch.arange(5))
        received = reader.receive()
        device.stream = _Stream(device.log, "other")
        del received
    assert device.log[-2:] == ["stream waits for other", "stream records released 0"]
    with pipe(copy=True) as (reader, writer):
        writer.send(torch.arange(5))
        received = reader.receive()
        assert device.log[-1] == "other records released 1"
        writer.send(torch.zeros(5))
        assert received.tolist() == [0, 1, 2, 3, 4]
        reader.receive()
    assert device.slots == 2


def test_device_memory_is_limited(device: _Device) -> None:
    """`max_bytes` bounds a device's slots: an element that can't fit is refused, and one that may fit later waits."""
    with pipe(max_bytes=3 << 20) as (reader, writer):
        with pytest.raises(UsageError, match=r"must fit max_bytes=3145728; got 4194304 bytes on cuda:0"):
            writer.send(torch.zeros(1 << 20))
        writer.send(torch.zeros(1 << 18))
        first = reader.receive()
        with pytest.raises(TimeoutError):
            writer.send(torch.ones(5 << 17), timeout_seconds=0.05)
        with pytest.raises(UsageError, match="max_bytes"):
            reader.receive(timeout_seconds=5)
        del first
        writer.send(torch.ones(5 << 17))
        assert float(reader.receive().sum()) == 5 << 17
        writer.send(np.arange(100_000))  # memory of the host whose slot may have been a ticket
        assert reader.receive()[-1] == 99_999
    assert device.slots == 2


def test_a_device_that_can_not_be_shared_is_an_error_of_the_send(device: _Device) -> None:
    """If CUDA refuses to share memory, `send` raises torch's error, and the pipe stays usable."""
    with pipe() as (reader, writer):
        device.failure = RuntimeError("CUDA error: operation not supported")
        with pytest.raises(RuntimeError, match="not supported"):
            writer.send(torch.zeros(3))
        device.failure = None
        writer.send([1, torch.ones(3)])
        number, tensor = reader.receive()
        assert (number, tensor.tolist()) == (1, [1, 1, 1])
        del tensor


def test_a_process_can_not_receive_its_own_device_tensor(device: _Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would crash, so it is an error before torch is called, and the pipe stays usable."""
    monkeypatch.setattr(_device_tensors, "_checked", unchanged)
    with pipe() as (reader, writer):
        for _ in range(2):
            writer.send(torch.zeros(2))
            with pytest.raises(UsageError, match=r"can't receive its own CUDA message.*send tensor\.cpu\(\)"):
                reader.receive()
        writer.send("hello")
        assert reader.receive() == "hello"
    assert not any("opens" in line for line in device.log)


def test_device_tensors_need_consent_on_both_sides(device: _Device) -> None:
    """Neither shares nor opens device memory unless it may."""
    refusal = pytest.raises(MessageError, match="refused: this message has a CUDA tensor")
    with TensorPipeReader() as reader, refusal, TensorPipeWriter(reader.address, allow_pickle=True) as writer:
        writer.send([torch.zeros(2)])
        with pytest.raises(MessageError, match="allow_pickle=True"):
            reader.receive()
    refused = pytest.raises(UsageError, match=r"\[0\] is a CUDA tensor.*\.cpu\(\).*allow_pickle=True")
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer, refused:
        writer.send([torch.zeros(2)])
    assert not any("opens" in line for line in device.log)


def test_damaged_device_slots_are_message_errors(device: _Device) -> None:
    """Handles that couldn't have been written, or reach out of their storage, never get to torch."""
    shared: dict[str, Any] = dict(json.loads(_device_tensors.WriterSlot(0, 1 << 20).shared()))
    _device_tensors.ReaderSlot(json.dumps(shared).encode())
    for damage in (
        *({"bytes": 1 << 40}, {"bytes": -1}, {"device": "x"}, {"device": True}, {"handle": "zz"}, {"handle": None}),
        *({"filled": 5}, {"must_wait": 1}, {"other": 1}, {}),
    ):
        damaged = {**shared, **damage}
        if not damage:
            del damaged["token"]
        with pytest.raises(MessageError, match="the handles of a device slot are damaged"):
            _device_tensors.ReaderSlot(json.dumps(damaged).encode())
    slot = _device_tensors.ReaderSlot(json.dumps(shared).encode())
    for offset, size in [(1 << 20, 512), ((1 << 20) - 512, 1024), (100, 4), (1 << 62, 4)]:
        with pytest.raises(MessageError, match="must be inside its device slot of 1048576 bytes, aligned"):
            slot.tensor(None, "float32", (size // 4,), offset, size)
    assert device.log == []


@contextmanager
def sending(send: Callable[..., None], *arguments: object) -> Generator[tuple[TensorPipeReader, Any]]:
    """Open a reader, and run a sender in another process, which ends after the reader: else torch leaves a file."""
    spawn = multiprocessing.get_context("spawn")
    answers, to_child = spawn.Pipe()
    with TensorPipeReader(allow_pickle=True) as reader:
        child = spawn.Process(target=send, args=(reader.address, *arguments, to_child))
        child.start()
        yield reader, answers
    del reader
    answers.send("end")
    child.join()
    assert child.exitcode == 0


@NEEDS_GPU
@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")
def test_a_gpus_tensors_arrive_while_streams_run() -> None:
    """The results of long kernels arrive, whatever the writer does with its tensor afterwards; slots are used again."""
    with sending(send_computed, 40) as (reader, _):
        kept: list[tuple[int, Any]] = []
        for step, element in enumerate(reader):
            torch.cuda._sleep(10_000_000)  # noqa: SLF001 - torch's own way to keep a stream busy
            assert element["step"] == step
            assert element["y"].dtype == torch.bfloat16
            if step % 10 == 0:
                kept.append((step, element["x"]))
            total = element["x"].double().sum()  # behind the sleep; then the views are dropped at once
            count = element["y"].numel()
            del element
            assert total.item() == step * LARGE
            assert count == LARGE // 2
        assert all(bool((x == step).all()) for step, x in kept)
        kept.clear()
        del reader


@NEEDS_GPU
def test_a_gpus_send_does_not_wait_for_its_stream() -> None:
    """`send` and `receive` return while the writer's stream is still busy with the element."""
    with sending(send_without_waiting) as (reader, answers):
        first = reader.receive()
        assert float(first[0]) == 0
        del first
        answers.send("the slot is free")
        second = reader.receive()
        assert answers.recv()
        assert float(second.sum()) == 5000
        del second, reader
        torch.cuda.synchronize()

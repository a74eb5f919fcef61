"""Copies to a CUDA device: on a stream of their own, from memory that isn't written to before they are done."""

import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")
door = pytest.importorskip("penstock.torch")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
ROWS, WIDTH = 8, 1 << 12


def element(number: int) -> Any:
    """Return rows whose values all identify the element."""
    return {"x": np.full(WIDTH, number, np.float32), "label": number, "name": str(number)}


class Event:
    """A stand-in for a CUDA event."""

    def record(self, stream: Any) -> None:
        """Stand behind what the stream was given."""
        done.append(("record", self, stream))

    def synchronize(self) -> None:
        """Wait for that."""
        done.append(("synchronize", self))


class Stream:
    """A stand-in for a CUDA stream."""

    current: Any = None

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.before, Stream.current = Stream.current, self

    def __exit__(self, *error: object) -> None:
        Stream.current = self.before

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        done.append(("wait", event, self))


done: list[Any] = []


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace CUDA, where there is none, by stand-ins that record their calls in order."""
    make_empty, move = torch.empty, torch.Tensor.to

    def empty(*size: Any, pin_memory: bool = False, **how: Any) -> Any:
        assert pin_memory or not size[0]
        return make_empty(*size, **how)

    def record_stream(tensor: Any, stream: Any) -> None:
        done.append(("used", tuple(tensor.shape), stream))

    def copied(tensor: Any, device: Any, **how: Any) -> Any:
        done.append(("copy", Stream.current, how))
        return move(tensor, device, copy=True)

    def entered(stream: Stream) -> Stream:
        return stream

    def current_stream(device: Any) -> Any:
        del device
        return Stream.current

    done.clear()
    Stream.current = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    monkeypatch.setattr(torch.Tensor, "to", copied)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_order_of_streams_and_events(ahead: int) -> None:
    """Memory is written again only after its event; a delivered batch waits for its own copies alone."""
    from penstock.torch._loader import CudaCopies  # noqa: PLC0415 - where torch is not installed the module is skipped

    copies = CudaCopies(torch.device("cpu"), ahead)
    events: list[Any] = []
    for step in range(6):
        done.clear()
        batch = {"x": torch.full((ROWS, WIDTH), step), "label": torch.tensor(step), "empty": torch.ones(0), "n": "a"}
        hand_over = copies.begin(batch)
        if step > ahead:
            assert done.pop(0) == ("synchronize", events[step - ahead - 1])
        assert [entry[0] for entry in done] == ["copy", "copy", "copy", "record"]
        _, event, side = done.pop()
        assert side is not Stream.current
        assert done == [("copy", side, {"non_blocking": True})] * 3
        events.append(event)
        done.clear()
        placed = hand_over()
        assert done[0] == ("wait", event, Stream.current)
        assert done[1:] == [("used", shape, Stream.current) for shape in ((ROWS, WIDTH), (), (0,))]
        assert placed["x"].equal(batch["x"])
        assert (placed["label"].item(), placed["empty"].shape, placed["n"]) == (step, (0,), "a")


@pytest.mark.usefixtures("recorded")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantiz")
def test_tensors_that_are_not_dense_are_copied_on_delivery() -> None:
    """Nested, quantized and sparse tensors, which have no place in pinned memory, arrive as they are."""
    from penstock.torch._loader import CudaCopies  # noqa: PLC0415 - where torch is not installed the module is skipped

    batch = {
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
        "sparse": torch.eye(3).to_sparse(),
        "dense": torch.ones(4),
    }
    placed = CudaCopies(torch.device("cpu"), 1).begin(batch)()
    assert placed["nested"].is_nested
    assert [part.tolist() for part in placed["nested"].unbind()] == [[1.0] * 2, [1.0] * 3]
    assert placed["quantized"].dequantize().tolist() == [1.0] * 3
    assert placed["sparse"].to_dense().equal(torch.eye(3))
    assert placed["dense"].tolist() == [1.0] * 4


def keep_busy(cycles: int) -> None:
    """Keep the device's current stream busy."""
    torch.cuda._sleep(cycles)  # noqa: SLF001 - torch has no public way to do it


@pytest.fixture(scope="module", autouse=True)
def started_device() -> None:
    """Start CUDA, where there is a device: torch keeps its descriptors open."""
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")


@CUDA
@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("workers", [0, 2])
def test_values_on_the_device(workers: int, kind: Any) -> None:
    """Batches arrive unchanged, together with leaves that are no tensors."""
    dataset = ps.range(64).map(element).batch(ROWS)
    with door.Loader(dataset, device="cuda", num_workers=workers, workers=kind) as loader:
        for step, batch in enumerate(loader):
            assert batch["x"].is_cuda
            assert batch["x"][:, 0].tolist() == batch["label"].tolist() == list(range(step * ROWS, (step + 1) * ROWS))
            assert batch["name"] == [str(number) for number in batch["label"].tolist()]


@CUDA
def test_a_thread_places_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With workers, a thread copies batches ahead, while the program waits for its step; all values arrive."""
    threads: list[str] = []
    copies_class = pytest.importorskip("penstock.torch._loader").CudaCopies
    begin = copies_class.begin

    def noted(copies: Any, batch: Any) -> Any:
        threads.append(threading.current_thread().name)
        return begin(copies, batch)

    monkeypatch.setattr(copies_class, "begin", noted)
    dataset = ps.range(200 * ROWS).map(element).batch(ROWS)
    with door.Loader(dataset, device="cuda", num_workers=2, workers="threads") as loader:
        for step, batch in enumerate(loader):
            keep_busy(4_000_000)
            assert batch["label"].tolist() == list(range(step * ROWS, (step + 1) * ROWS))
    assert len(threads) == 200
    assert threads.count("penstock-placing") > 100


@CUDA
def test_a_delayed_stream_never_sees_other_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 10,000 batches, dropped at once, of which the copies lag far behind, none holds another's values."""
    made: list[Any] = []
    stream = torch.cuda.Stream

    def kept(*arguments: Any, **how: Any) -> Any:
        made.append(stream(*arguments, **how))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", kept)
    dataset = ps.range(10_000 * ROWS).map(lambda number: np.full(WIDTH, number, np.int64)).batch(ROWS)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    rows = torch.arange(ROWS, device="cuda")[:, None]
    with door.Loader(dataset, device="cuda", ahead=2, num_workers=4, workers="threads") as loader:
        for step, batch in enumerate(loader):
            if step % 50 == 0:
                with torch.cuda.stream(made[0]):
                    keep_busy(20_000_000)
            wrong += (batch != rows + step * ROWS).sum()
            del batch
    assert wrong.item() == 0

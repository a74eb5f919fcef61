"""Feeding a training loop in PyTorch on a CUDA device: the time of a step, beside a loop that has its batch there.

A step is a number of matrix products on the device, and reads the batch. One loop waits for each step, as one does that
logs each loss: the device is idle while the loop takes its next batch. The other waits for the step before the last
one, so the device has work meanwhile. The limit is the same loop over one batch that lies on the device. So a share
below 1 is the time in which the device waited for data.

Pictures of 224 x 224 pixels are cropped and mirrored by an object of the user's, one at a time: 38 MB a batch. Windows
of tokens are read from a file: small batches, whose fixed costs show. Both are copied to the device by the loader, or
by the loop as the loader's documentation says. Without a CUDA device, all of this runs on the processors: that tries
the code, and its figures say nothing.
"""

import importlib
import importlib.util
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro import tokens
from benchmarks.scenario import MILLISECONDS, Batch, Contestant, Goal, Measurement, MissingError, Role, Scenario

Device = Any  # a torch.device
LOADERS: tuple[tuple[str, Role, str], ...] = (
    ("penstock.torch.DataLoader", "ours", "penstock.torch"),
    ("torch's DataLoader", "rival", "torch.utils.data"),
)
PICTURE = 256  # pixels of a stored picture's side
CROP = 224
GOAL = 0.95
RESIDENT = "a batch that lies on the device"
WORKERS = min(8, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of batches and the steps that read them.

    Attributes:
        name: of the kind.
        dataset: the records, batched, over all epochs.
        records: the same records as an object for torch's loader, shuffled by it.
        batch_size: records of a batch.
        width: rows and columns of the products of a step.
        products: the number of products of a step.
        steps: the number of steps in a repeat.
    """

    name: str
    dataset: ps.Dataset[Any]
    records: Any
    batch_size: int
    width: int
    products: int
    steps: int


class Pictures:
    """Pictures and their labels: a random crop of each, mirrored by chance, as arrays of channels, rows and columns."""

    def __init__(self, stored: NDArray[np.uint8], count: int) -> None:
        self._stored, self._count = stored, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: int) -> tuple[NDArray[np.uint8], int]:
        rng = np.random.default_rng(key)
        top, left = rng.integers(0, PICTURE - CROP, 2)
        crop = self._stored[key % len(self._stored), :, top : top + CROP, left : left + CROP]
        return np.ascontiguousarray(crop[:, :, ::-1] if rng.random() < 0.5 else crop), key % 1000


class Windows:
    """Windows of a file of tokens, as 64-bit numbers, which torch's embeddings take."""

    def __init__(self, path: Path, length: int) -> None:
        mapped = np.memmap(path, np.dtype("<u2"), "r")
        self._windows = mapped[: len(mapped) // length * length].reshape(-1, length)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, key: int) -> NDArray[np.int64]:
        window: NDArray[np.int64] = self._windows[key].astype(np.int64)
        return window


def build(bench: Bench) -> Scenario:
    """Return the scenario: both kinds of batches, by Penstock's loader, its drop-in and torch's loader."""
    if importlib.util.find_spec("torch") is None:
        raise MissingError("PyTorch is not installed. pip install torch")
    torch: Any = importlib.import_module("torch")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    works = (_pictures(bench.smoke), _tokens(bench))
    made = (one for work in works for one in _contestants(bench.scope, device, work))
    where = torch.cuda.get_device_name() if device.type == "cuda" else "no CUDA device, so on the processors"
    return Scenario("torch-feed", f"time of a training step in PyTorch, on {where}", tuple(made), rounds=3)


def _pictures(smoke: bool) -> Work:  # noqa: FBT001 - internal
    stored = np.random.default_rng(7).integers(0, 256, (64, 3, PICTURE, PICTURE), np.uint8)
    records = Pictures(stored, 64 if smoke else 25_600)
    size = 8 if smoke else 256
    dataset = ps.read(records, seed=7).shuffle().repeat().batch(size)
    return Work("pictures", dataset, records, size, 64 if smoke else 8192, 1 if smoke else 20, 2 if smoke else 20)


def _tokens(bench: Bench) -> Work:
    length, size = 2048, 8 if bench.smoke else 32
    file = tokens.Work(bench.directory / "tokens.bin", 200_000 if bench.smoke else 100_000_000)
    tokens.write_tokens(file)
    source = ps.sources.Tokens(file.path, length, stride=length, dtype="uint16").astype(np.int64)
    dataset = ps.read(source, seed=7).shuffle().repeat().batch(size)
    width, products, steps = (64, 1, 2) if bench.smoke else (4096, 8, 200)
    return Work("tokens", dataset, Windows(file.path, length), size, width, products, steps)


def _contestants(scope: ExitStack, device: Device, work: Work) -> Iterator[Contestant]:
    """Yield the limit, ours and torch's loader, in both loops."""
    ours: list[tuple[str, dict[str, Any]]] = [
        (f"{WORKERS} threads", {"num_workers": WORKERS, "workers": "threads"}),
        (f"{WORKERS} processes", {"num_workers": WORKERS, "workers": "processes"}),
        ("auto", {"num_workers": "auto"}),
    ]
    ways: list[tuple[str, Role, Callable[[], Iterator[Any]]]] = [
        (RESIDENT, "limit", partial(_resident, device, work)),
        *((f"penstock.torch.Loader, {name}", "ours", partial(_ours, scope, device, work, how)) for name, how in ours),
        (
            f"penstock.torch.DataLoader, {WORKERS} workers",
            "ours",
            partial(_torch, scope, device, work, "penstock.torch"),
        ),
        (f"torch's DataLoader, {WORKERS} workers", "rival", partial(_torch, scope, device, work, "torch.utils.data")),
    ]
    step = _step(device, work)
    for name, role, batches in ways:
        opened = cache(batches)
        for loop, behind in (("waiting for each step", 0), ("one step behind", 1)):
            run = partial(_run, device, work, step, opened, behind)
            against = () if role == "limit" else (f"{work.name}, {loop}: {RESIDENT}",)
            goal = Goal("share", GOAL) if role == "ours" else None
            yield Contestant(f"{work.name}, {loop}: {name}", role, run, MILLISECONDS, against, goal)


def _run(
    device: Device,
    work: Work,
    step: Callable[[Batch], Batch],
    opened: Callable[[], Iterator[Batch]],
    behind: int,
    repeats: int,
) -> Measurement:
    return _timed(device, islice(opened(), repeats * work.steps), step, behind)


def _resident(device: Device, work: Work) -> Iterator[Any]:
    with ps.Loader(work.dataset) as loader:
        batch = _moved(device, _tensors(next(iter(loader))))
    while True:
        yield batch


def _ours(scope: ExitStack, device: Device, work: Work, options: dict[str, Any]) -> Iterator[Any]:
    door: Any = importlib.import_module("penstock.torch")
    return iter(scope.enter_context(door.Loader(work.dataset, device=device, **options)))


def _torch(scope: ExitStack, device: Device, work: Work, module: str) -> Iterator[Any]:
    """Return batches of a loader with torch's interface, moved as torch's documentation says, over all epochs."""
    loader: Iterable[Any] = importlib.import_module(module).DataLoader(
        work.records,
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=WORKERS,
        drop_last=True,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )

    def batches() -> Generator[Batch]:
        while True:
            for batch in loader:
                yield _moved(device, batch)

    return scope.enter_context(closing(batches()))


def _tensors(batch: Batch) -> Batch:
    torch: Any = importlib.import_module("torch")
    return [torch.from_numpy(leaf.copy()) for leaf in _leaves(batch)]


def _leaves(batch: Batch) -> list[Batch]:
    """Return the arrays or tensors of a batch."""
    return list(batch) if type(batch) in {tuple, list} else [batch]


def _moved(device: Device, batch: Batch) -> Batch:
    leaves = _leaves(batch)
    return [leaf.to(device, non_blocking=True) for leaf in leaves]


def _step(device: Device, work: Work) -> Callable[[Any], Any]:
    """Return a function that starts a step on a batch, and returns its result."""
    torch: Any = importlib.import_module("torch")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weights = torch.full((work.width, work.width), 1 / work.width, device=device, dtype=dtype)

    def step(batch: Batch) -> Batch:
        leaves = _leaves(batch)
        value = weights
        for _ in range(work.products):
            value = value @ weights
        return value.sum() + sum(leaf.sum() for leaf in leaves)

    return step


def _timed(device: Device, batches: Iterator[Any], step: Callable[[Any], Any], behind: int) -> Measurement:
    """Return the number of steps and their time; `behind` steps may be on the device beside the current one."""
    waits: deque[Callable[[], None]] = deque()
    steps = 0
    started = time.perf_counter()
    for batch in batches:
        step(batch)
        waits.append(_wait(device))
        if len(waits) > behind:
            waits.popleft()()
        steps += 1
    while waits:
        waits.popleft()()
    return Measurement(steps, time.perf_counter() - started)


def _wait(device: Device) -> Callable[[], None]:
    """Return a function that waits for all that the device was given."""
    if device.type != "cuda":
        return lambda: None  # it is done
    torch: Any = importlib.import_module("torch")
    event = torch.cuda.Event()
    event.record()
    wait: Callable[[], None] = event.synchronize
    return wait

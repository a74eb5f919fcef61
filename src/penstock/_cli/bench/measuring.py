"""The measurement of one loader, in a process of its own: its rate, processor time and memory, and its report."""

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from threading import Event
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import penstock
from penstock import _optional
from penstock._frozen import frozen
from penstock._graph import Element, Gather, Node, is_batch, is_indexable, with_parents
from penstock._independent import copied
from penstock._live_page import cpu_seconds, family, memory_bytes, processes
from penstock._loader._verify import Replay
from penstock._plan._lower import program_of
from penstock.batching import Stack
from penstock.errors import UsageError

Way: TypeAlias = Literal["inline", "threads", "processes", "free data", "torch", "beside"]
"""The way in which batches are made: by a loader without workers, with threads or with processes; of data that costs
nothing; by torch's loader; by one of the user's."""
WAYS: Final[tuple[Way, ...]] = get_args(Way)

_RECORDED: Final = 16  # elements that data which costs nothing repeats
_LEAST_BATCHES: Final = 2
_SAMPLES: Final = 4  # of the memory


@frozen
class Request:
    """A measurement to be made.

    Attributes:
        way: how batches are made.
        workers: the number of workers; 0 for "inline".
        kind: of the workers, for "free data".
        seconds: the time of the measurement.
        step_seconds: the time of a training step, for which each batch is kept.
    """

    way: Way
    workers: int
    kind: Literal["threads", "processes"]
    seconds: float
    step_seconds: float


@frozen
class Measured:
    """The figures of a measurement, after the first batch.

    Attributes:
        batches: their number.
        seconds: their time.
        start_seconds: the time to the first batch.
        waited_seconds: the time in which the training waited.
        cpu_seconds: the processor time of all processes.
        memory_bytes: the largest memory of all processes together.
        bottleneck: the one that the loader's report names; empty if it has none.
        advice: of the report.
    """

    batches: int
    seconds: float
    start_seconds: float
    waited_seconds: float
    cpu_seconds: float
    memory_bytes: int
    bottleneck: str = ""
    advice: str = ""


def measure(dataset: "penstock.Dataset[Any]", request: Request, beside: Iterable[object] | None = None) -> Measured:
    """Measure one way of making batches.

    Args:
        dataset: the dataset.
        request: the way, and for how long.
        beside: the loader for the way "beside".

    Raises:
        UsageError: the batches of this dataset can't be made this way, or there are none.
    """
    if request.way == "torch":
        return _timed(_torch_loader(dataset.node, request.workers), request)
    if beside is not None:
        return _timed(beside, request)
    if request.way == "free data":
        dataset = penstock.Dataset(_free(dataset.node))
    count = 0 if request.way == "inline" else request.workers
    kind = request.way if request.way in {"threads", "processes"} else request.kind
    with penstock.Loader(dataset, num_workers=count, workers=cast("Any", kind)) as loader:
        found = _timed(loader, request)
        report = loader.report()
    return replace(found, bottleneck=report.bottleneck or "", advice=report.advice)


def _timed(loader: Iterable[object], request: Request) -> Measured:
    pause = Event()  # never set
    began = perf_counter()
    batches = _repeated(loader)
    next(batches)
    start = perf_counter()
    pids = family(os.getpid(), processes())
    cpu, memory = cpu_seconds(pids), memory_bytes(pids)
    count, waited, looked, now = 0, 0.0, start, start
    while now - start < request.seconds or count < _LEAST_BATCHES:
        if request.step_seconds:
            pause.wait(request.step_seconds)
        asked = perf_counter()
        next(batches)
        now = perf_counter()
        waited += now - asked
        count += 1
        if now - looked > request.seconds / _SAMPLES:
            memory, looked = max(memory, memory_bytes(pids)), now
    used = cpu_seconds(pids) - cpu
    return Measured(count, now - start, start - began, waited, used, max(memory, memory_bytes(pids)))


def _repeated(loader: Iterable[object]) -> Iterator[object]:
    """Yield the batches of one epoch after the other.

    Raises:
        UsageError: an epoch has none.
    """
    while True:
        count = 0
        for batch in loader:
            yield batch
            count += 1
        if not count:
            raise UsageError("there is no batch to measure: the dataset has too few elements")


def _rows_of(node: Node) -> tuple[Node, Gather[Any]]:
    """Return the node below the batch, and the batch.

    Raises:
        UsageError: there is no batch of consecutive elements.
    """
    batch = program_of(node).batch
    if batch is None or not is_batch(batch):
        raise UsageError("the dataset has no batch(n), so its rows can't be taken apart")
    return batch.parent, batch


def _free(node: Node) -> Node:
    """Return batches of the same form, of elements that cost nothing."""
    rows, batch = _rows_of(node)
    elements = [copied(element) for element in itertools.islice(penstock.Dataset(rows), _RECORDED)]
    if not elements:
        raise UsageError("there is no batch to measure: the dataset has too few elements")
    many = penstock.range(1 << 40).map(Replay(elements), name="nothing")
    return with_parents(batch, (many.node,))


class Rows:
    """The elements of a dataset, as torch's loader takes them."""

    def __init__(self, dataset: "penstock.Dataset[Any]") -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position: int) -> Element:
        return self._dataset[position]


def _torch_loader(node: Node, workers: int) -> Iterable[object]:
    rows, batch = _rows_of(node)
    if not is_indexable(rows):
        raise UsageError("torch's loader needs positions, and the dataset is read in order")
    data = cast("Any", _optional.need("torch.utils.data", "torch", extra="torch"))
    loader: Iterable[object] = data.DataLoader(
        Rows(penstock.Dataset(rows)),
        batch_size=batch.value.size,
        num_workers=workers,
        collate_fn=None if isinstance(batch.value.merge, Stack) else batch.value.merge,
        persistent_workers=workers > 0,
    )
    return loader

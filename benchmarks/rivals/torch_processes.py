"""torch's DataLoader with worker processes, on the work of the scenarios about these."""

# The rival's package carries few types and may be absent, so pyright is asked for less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.bench import Bench
from benchmarks.macro import images
from benchmarks.processes import big_batches, busy_trainer, memory, start_stop
from benchmarks.scenario import Batch, Contestant


class Items:
    """The items of a scenario, by key."""

    def __init__(self, count: int, item: Any) -> None:  # noqa: ANN401 - whatever a scenario's items are
        self.count = count
        self.item = item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: int) -> Any:  # noqa: ANN401 - see above
        return self.item(key)


@contextmanager
def open_loader(items: Items, batch_size: int, num_workers: int, **options: Any) -> Generator[DataLoader[Any]]:  # noqa: ANN401 - torch's own
    """Open a loader that keeps its workers from pass to pass, and ends them with the context."""
    dataset: Any = items  # torch needs no base class, though its types say so
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=batch_size, num_workers=num_workers, persistent_workers=num_workers > 0, **options
    )
    try:
        yield loader
    finally:
        stop(loader)


def stop(loader: DataLoader[Any]) -> None:
    """End the workers that a loader keeps; torch offers no other way."""
    iterator: Any = loader._iterator  # noqa: SLF001 - persistent workers have no public end
    if iterator is not None:
        iterator._shutdown_workers()  # noqa: SLF001 - see above


def in_memory(work: memory.Work, _: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `memory`: rate and memory at every width."""
    made: list[Contestant] = []
    for workers in work.widths:
        opened = partial(open_memory, work, workers)
        made += memory.contestants(memory.Way("torch", "rival", workers, opened))
    return tuple(made)


@contextmanager
def open_memory(work: memory.Work, workers: int) -> Generator[Iterable[Batch]]:
    """Open a loader of the large items."""
    with open_loader(Items(work.items_each * workers, work.item), work.batch_size, workers) as loader:
        yield loader


def big(work: big_batches.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `big-batches`: two workers, and what receiving from them costs."""
    items = Items(work.num_batches * work.batch_size, work.item)
    loader = cache(lambda: scope.enter_context(open_loader(items, work.batch_size, 2)))
    name = "torch, 2 processes"
    return (
        big_batches.contestant(work, name, "rival", loader),
        big_batches.receiving(work, name, "rival", loader),
    )


def started(given: tuple[Bench, start_stop.Work], _: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `start-stop`: by fork, the default on Linux until Python 3.14, and a fork server."""
    bench, work = given
    made: list[Contestant] = []
    for method in ("fork", "forkserver"):
        opened = partial(open_started, work, method)
        made += start_stop.contestants(bench, f"torch, {method}", "rival", opened)
    return tuple(made)


@contextmanager
def open_started(work: start_stop.Work, method: str) -> Generator[Iterable[Batch]]:
    """Make a loader whose workers are started in some way."""
    items = Items(work.count, work.item)
    with open_loader(items, work.batch_size, start_stop.NUM_WORKERS, multiprocessing_context=method) as loader:
        yield loader


def beside_busy(work: busy_trainer.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `busy-trainer`: one worker, and two."""
    made: list[Contestant] = []
    for workers in (1, 2):
        opened = partial(_open_endless, work, workers)
        processes = "process" if workers == 1 else "processes"
        made.append(busy_trainer.contestant(scope, work, f"torch, {workers} {processes}", "rival", opened))
    return tuple(made)


def _open_endless(work: busy_trainer.Work, workers: int, scope: ExitStack) -> Iterator[Batch]:
    items = Items(busy_trainer.ENDLESS, work.item)
    return iter(scope.enter_context(open_loader(items, busy_trainer.BATCH_SIZE, workers)))


def of_images(work: images.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestant of `images`: two workers."""
    loader = scope.enter_context(
        open_loader(Items(work.count, work.contiguous), work.batch_size, images.NUM_WORKERS, shuffle=True)
    )
    return (images.contestant(work, "torch, 2 processes", "rival", lambda: loader),)

"""torch's DataLoader with worker processes, and Penstock's replacement, in the scenarios about worker processes."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

from torch.utils.data import DataLoader

import penstock.torch
from benchmarks.bench import Bench
from benchmarks.macro import images
from benchmarks.processes import big_batches, busy_trainer, memory, start_stop
from benchmarks.scenario import Batch, Contestant, Goal, Role

MANY_WORKERS = 8  # started for each measurement


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of loaders: its name in reports, its role, and the class."""

    name: str
    role: Role
    made: type[DataLoader[Any]]

    def compared(self, contestant: Contestant) -> Contestant:
        """Return a contestant of this kind; Penstock's should be no slower than torch's of the same name."""
        if self.role == "rival":
            return contestant
        return replace(contestant, against=(contestant.name.replace(self.name, TORCH.name),), goal=Goal("share", 1))


TORCH = Kind("torch", "rival", DataLoader)
KINDS = (TORCH, Kind("penstock.torch", "ours", penstock.torch.DataLoader))


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
def open_loader(
    kind: Kind,
    items: Items,
    batch_size: int,
    num_workers: int,
    **options: Any,  # noqa: ANN401 - torch's own
) -> Generator[DataLoader[Any]]:
    """Open a loader that keeps its workers from pass to pass, and end them with the context."""
    dataset: Any = items  # torch needs no base class, though its types require one
    loader = kind.made(
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
        for kind in KINDS:
            way = memory.Way(kind.name, kind.role, workers, partial(open_memory, kind, work, workers))
            made += memory.contestants(way, limit=work.bound(workers), beside=(memory.named(workers, TORCH.name),))
    return tuple(made)


@contextmanager
def open_memory(kind: Kind, work: memory.Work, workers: int) -> Generator[Iterable[Batch]]:
    """Open a loader of the large items."""
    with open_loader(kind, Items(work.items_each * workers, work.item), work.batch_size, workers) as loader:
        yield loader


def big(work: big_batches.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `big-batches`: two workers, and the cost of receiving from them."""
    items = Items(work.num_batches * work.batch_size, work.item)
    made: list[Contestant] = []
    for kind in KINDS:
        loader = cache(partial(_entered, scope, partial(open_loader, kind, items, work.batch_size, 2)))
        name = f"{kind.name}, 2 processes"
        made.append(kind.compared(big_batches.contestant(work, name, kind.role, loader)))
        made.append(big_batches.receiving(work, name, kind.role, loader))
    return tuple(made)


def _entered(scope: ExitStack, opened: Callable[[], AbstractContextManager[DataLoader[Any]]]) -> DataLoader[Any]:
    return scope.enter_context(opened())


def started(given: tuple[Bench, start_stop.Work], _: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `start-stop`.

    torch's workers start by fork, the default on Linux until Python 3.14, by a fork server, and by spawn, which is the
    default elsewhere; Penstock's are forked from a clean process. With many workers only the first batch of a program
    is measured, since torch's spawn takes seconds.
    """
    bench, work = given
    torch, ours = KINDS
    made: list[Contestant] = []
    for method in ("fork", "forkserver"):
        opened = partial(open_started, torch, work, start_stop.NUM_WORKERS, method)
        made += start_stop.contestants(bench, f"torch, {method}", "rival", opened)
    opened = partial(open_started, ours, work, start_stop.NUM_WORKERS, None)
    made += start_stop.contestants(bench, ours.name, "ours", opened)
    workers = start_stop.NUM_WORKERS if bench.smoke else MANY_WORKERS
    many = {
        kind.name: start_stop.contestants(
            bench, f"{kind.name}, {workers} workers", kind.role, partial(open_started, kind, work, workers, method)
        )[0]
        for kind, method in ((torch, "spawn"), (ours, None))
    }
    goal = Goal("share", 2)
    made += [many[torch.name], replace(many[ours.name], against=(many[torch.name].name,), goal=goal)]
    return tuple(made)


@contextmanager
def open_started(kind: Kind, work: start_stop.Work, workers: int, method: str | None) -> Generator[Iterable[Batch]]:
    """Make a loader whose workers are started by a method."""
    items = Items(work.count, work.item)
    with open_loader(kind, items, work.batch_size, workers, multiprocessing_context=method) as loader:
        yield loader


def beside_busy(work: busy_trainer.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `busy-trainer`: one worker, and two."""
    made: list[Contestant] = []
    for kind, workers in product(KINDS, (1, 2)):
        opened = partial(_open_endless, kind, work, workers)
        processes = "process" if workers == 1 else "processes"
        made.append(busy_trainer.contestant(scope, work, f"{kind.name}, {workers} {processes}", kind.role, opened))
    return tuple(made)


def _open_endless(kind: Kind, work: busy_trainer.Work, workers: int, scope: ExitStack) -> Iterator[Batch]:
    items = Items(busy_trainer.ENDLESS, work.item)
    return iter(scope.enter_context(open_loader(kind, items, busy_trainer.BATCH_SIZE, workers)))


def of_images(work: images.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `images`: two workers, pairs of an image and a label."""
    made: list[Contestant] = []
    for kind in KINDS:
        items = Items(work.count, work.contiguous)
        opened = partial(open_loader, kind, items, work.batch_size, images.NUM_WORKERS, shuffle=True)
        loader = cache(partial(_entered, scope, opened))
        name, goal = f"{kind.name}, 2 processes, (image, label)", Goal("share", 0.93)
        batches = partial(_images_of, loader)
        made.append(images.contestant(work, name, kind.role, batches, goal if kind.role == "ours" else None))
    return tuple(made)


def _images_of(opened: Callable[[], Iterable[Any]]) -> Iterator[Batch]:
    return images.images_of(opened())

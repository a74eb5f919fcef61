"""torch's DataLoader with worker processes, on the work of the scenarios about these."""

# The rival's package carries few types and may be absent, so pyright is asked for less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.processes import memory
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

"""A few slow items among many fast ones: how far ahead a loader must work to keep its order and its workers busy.

One item in fifty sleeps a hundred times as long as the others. The limit is a bare thread pool without an order: each
thread takes the next item at once. A loader in order must hold the items behind a slow item until it is ready; if its
window is too small, the workers are idle meanwhile. The text below the table shows the smallest tried window that keeps
90 % of the rate.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import Batch, Contestant, Goal, Output, Scenario, per_second
from benchmarks.streams import OutputDiffersError, passes

UNIT = per_second("items")
LIMIT = "bare threads, unordered"
NUM_WORKERS = 8
SHARE = 0.9
# For each batch size, how many batches ahead; the last of each should keep the rate.
WINDOWS = {8: (2, 16, 64), 32: (2, 8, 16), 256: (1, 2)}
WITH_GOAL = {(32, 16), (256, 2)}


@dataclass(frozen=True, slots=True)
class Work:
    """Images of bytes, and their times."""

    count: int = 4096
    shape: tuple[int, ...] = (3, 224, 224)
    quick_seconds: float = 0.002
    slow_seconds: float = 0.2
    slow_one_in: int = 50

    def seconds(self, key: int) -> float:
        """Return the time of an item; slow items come without a period."""
        mixed = (key * 0x9E3779B97F4A7C15) % 2**64 >> 32
        return self.slow_seconds if mixed % self.slow_one_in == 0 else self.quick_seconds

    def item(self, key: int) -> NDArray[np.uint8]:
        """Return an item that contains its key."""
        time.sleep(self.seconds(key))
        item = np.full(self.shape, key % 251, np.uint8)
        item.reshape(-1)[:8] = np.array([key], np.int64).view(np.uint8)
        return item

    @property
    def most_per_second(self) -> float:
        """The rate of workers that only sleep."""
        return self.count * NUM_WORKERS / sum(map(self.seconds, range(self.count)))


def build(bench: Bench) -> Scenario:
    """Return the scenario: the pool without an order, and Penstock with several windows."""
    work = Work(128, (3, 8, 8), 0.0005, 0.01) if bench.smoke else Work()
    windows = {8: (2,), 32: (2,)} if bench.smoke else WINDOWS
    held: dict[str, float] = {}
    return Scenario(
        "stragglers",
        f"{100 / work.slow_one_in:g} % of the items take {1e3 * work.slow_seconds:g} ms, the others "
        f"{1e3 * work.quick_seconds:g} ms; {NUM_WORKERS} workers, so at most {work.most_per_second:,.0f} items/s",
        (
            _limit(work),
            *(_ours(bench, work, size, ahead, held) for size, tried in windows.items() for ahead in tried),
        ),
        summary=partial(_summary, work, windows, held),
    )


def _limit(work: Work) -> Contestant:
    output = Output("every item once", partial(unordered, work), ordered=False)
    return Contestant(LIMIT, "limit", passes(partial(unordered, work)), UNIT, output=output, repeats=1)


def unordered(work: Work) -> Iterator[Batch]:
    """Yield all items at once, in the order of the bare threads."""
    made: list[NDArray[np.uint8]] = []
    keys = itertools.count()

    def take() -> None:
        while (key := next(keys)) < work.count:
            made.append(work.item(key))

    threads = [threading.Thread(target=take) for _ in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield np.stack(made)


def _name(batch_size: int, prefetch: int) -> str:
    return f"penstock, batches of {batch_size}, prefetch={prefetch}"


def _ours(bench: Bench, work: Work, batch_size: int, prefetch: int, held: dict[str, float]) -> Contestant:
    name = _name(batch_size, prefetch)
    held[name] = 0.0
    dataset = ps.range(work.count).map(work.item).batch(batch_size)

    @cache
    def opened() -> ps.Loader[NDArray[np.uint8]]:
        loader = ps.Loader(dataset, num_workers=NUM_WORKERS, workers="processes", prefetch=prefetch)
        return bench.scope.enter_context(loader)

    def batches() -> Iterator[NDArray[np.uint8]]:
        first = 0
        for batch in opened():
            held[name] = max(held[name], opened().stats()["bytes_in_flight"])
            keys = batch.reshape(len(batch), -1)[:, :8].copy().view(np.int64).ravel()
            if not np.array_equal(keys, np.arange(first, first + len(batch))):
                raise OutputDiffersError(f"{name}: expected the items from {first} on, in order; got {keys}")
            first += len(batch)
            yield batch

    return Contestant(
        name,
        "ours",
        passes(batches),
        UNIT,
        against=(LIMIT,),
        goal=Goal("share", SHARE) if (batch_size, prefetch) in WITH_GOAL else None,
        output=Output("every item once", batches, ordered=False),
        facts=lambda: {"rows ahead": (prefetch + 1) * batch_size, "MB in flight": held[name] / 1e6},
        repeats=1,
    )


def _summary(
    work: Work,
    windows: Mapping[int, tuple[int, ...]],
    held: Mapping[str, float],
    medians: Mapping[str, float],
) -> str:
    """Return, for each batch size, the smallest window that keeps the rate."""
    needed = SHARE * medians[LIMIT]
    lines = [f"the window that keeps {100 * SHARE:.0f} % of the unordered rate, {needed:,.0f} items/s:"]
    for size, tried in windows.items():
        enough = [prefetch for prefetch in tried if medians[_name(size, prefetch)] >= needed]
        if enough:
            megabytes = held[_name(size, enough[0])] / 1e6
            rows = (enough[0] + 1) * size
            lines.append(f"  batches of {size}: prefetch={enough[0]}, {rows:,} rows, {megabytes:,.0f} MB")
        else:
            lines.append(f"  batches of {size}: more than prefetch={tried[-1]}")
    lines.append(f"  (8 workers that only sleep: {work.most_per_second:,.0f} items/s)")
    return "\n".join(lines)

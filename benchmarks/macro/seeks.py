"""A source that takes 8 ms a record, like a disk or a network file system, with different amounts of read-ahead.

The limit keeps 64 requests running at all times, and does nothing else.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import Batch, Contestant, Goal, Output, Scenario, per_second
from benchmarks.streams import passes

UNIT = per_second("records")
CLAIM = "every record once"
AT_ONCE = 64
LIMIT = f"bare asyncio, {AT_ONCE} at once"
READ_AHEAD = (1, 8, 64, 256)
NUM_WORKERS = 2
BATCH_SIZE = 64


@dataclass(frozen=True, slots=True)
class Seeking:
    """Integers with a delay for each."""

    count: int
    seconds: float

    def __len__(self) -> int:
        return self.count

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return records."""
        await asyncio.sleep(self.seconds * len(keys))  # one head, one seek after the other
        return [int(key) for key in keys]


@dataclass(frozen=True, slots=True)
class Blocking:
    """The same integers from a source that isn't async."""

    count: int
    seconds: float

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: int) -> int:
        time.sleep(self.seconds)
        return key


def build(bench: Bench) -> Scenario:
    """Return the scenario: bare requests, a blocking source, and an async source with different read-ahead."""
    count, seconds = (256, 0.001) if bench.smoke else (4_096, 0.008)
    source = Seeking(count, seconds)
    batches = partial(_at_once, source)
    output = Output(CLAIM, batches, ordered=False)
    blocking = ps.read(Blocking(count // 16, seconds)).batch(BATCH_SIZE)
    return Scenario(
        "seeks",
        f"{count:,} records of {1e3 * seconds:g} ms each, {NUM_WORKERS} worker threads, batches of {BATCH_SIZE}",
        (
            Contestant(LIMIT, "limit", passes(batches), UNIT, output=output, repeats=1),
            _ours(bench, "penstock, a source that blocks", blocking, 1, has_all=False),
            *(
                _ours(bench, f"penstock, read_ahead={ahead}", ps.read(source).batch(BATCH_SIZE), ahead)
                for ahead in READ_AHEAD
                if ahead > 1 or bench.smoke
            ),
        ),
    )


def _at_once(source: Seeking) -> Iterator[Batch]:
    """Yield all records at once, with a number of concurrent requests."""

    async def read_all() -> list[int]:
        free = asyncio.Semaphore(AT_ONCE)

        async def read_one(key: int) -> int:
            async with free:
                return (await source.read(np.array([key])))[0]

        return await asyncio.gather(*map(read_one, range(source.count)))

    yield np.array(asyncio.run(read_all()), np.int64)


def _ours(
    bench: Bench, name: str, dataset: ps.Dataset[NDArray[np.int64]], ahead: int, *, has_all: bool = True
) -> Contestant:
    limits = ps.Limits(read_ahead=ahead)
    loader = bench.scope.enter_context(ps.Loader(dataset, num_workers=NUM_WORKERS, workers="threads", limits=limits))
    batches = partial(iter, loader)
    return Contestant(
        name,
        "ours",
        passes(batches),
        UNIT,
        against=(LIMIT,) if has_all else (),
        goal=Goal("share", 0.9) if ahead == AT_ONCE else None,
        output=Output(CLAIM, batches, ordered=False) if has_all else None,
        repeats=1,
    )

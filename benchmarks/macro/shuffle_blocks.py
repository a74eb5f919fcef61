"""A shuffle by blocks: its cost per index, how well it mixes, and how often it opens blocks, beside other shuffles.

This scenario has no limit; the references are a uniform shuffle, and a shuffle buffer over shuffled blocks, as
WebDataset and the streams of Hugging Face have it. The facts are of one epoch of 524,288 records in 1,024 blocks, with
batches of 256: the variance of a batch's mean of a sorted feature, as a multiple of that by chance; the mean number of
open blocks, where a block that isn't used for 64 batches is closed; and how often a block is opened. Rivals shuffle
these records, too, as one rank of one node.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.macro.shuffle import timed_blocks
from benchmarks.scenario import NANOSECONDS, Contestant, Goal, Measurement, Role, Scenario
from penstock.sampling import BlockShuffle, Shuffle

Keys = NDArray[np.int64]
Sampler = BlockShuffle | Shuffle
ROWS = 256
RECORDS = 512  # in a block
BUFFER = 10_000
PATIENCE = 64  # batches for which a block stays open


@dataclass(frozen=True, slots=True)
class Work:
    """The number of blocks, each of `RECORDS` records."""

    blocks: int


def build(bench: Bench) -> Scenario:
    """Return the scenario: the sampler with 64 and 256 live blocks, a uniform one, a buffer, and rivals."""
    work, total = (Work(32), 10**4) if bench.smoke else (Work(1024), 10**8)
    many = np.arange(0, total + 1, 500)
    few = np.arange(work.blocks + 1) * RECORDS
    contestants = [
        _sampler(
            f"BlockShuffle.block, {live} live", BlockShuffle(many, 7, live, ROWS), BlockShuffle(few, 7, live, ROWS)
        )
        for live in (64, 256)
    ]
    uniform = _sampler("Shuffle.block", Shuffle(total, 7), Shuffle(work.blocks * RECORDS, 7))
    buffer = by_epoch(work, f"buffer of {BUFFER:,}", "reference", partial(_buffered, work.blocks))
    question = f"position → key of {total:,} records in {len(many) - 1:,} blocks; time per index"
    return Scenario("shuffle-blocks", question, (*contestants, uniform, buffer, *bench.rivals("shuffle-blocks", work)))


def _sampler(name: str, sampler: Sampler, small: Sampler) -> Contestant:
    block = min(1 << 16, len(sampler) // 16)
    epochs = np.zeros(block, np.int64)
    run = timed_blocks(len(sampler), block, lambda positions: sampler.block(epochs, positions))
    positions = np.arange(len(small))
    facts = partial(_facts, lambda: small.block(np.zeros_like(positions), positions)[1])
    if isinstance(sampler, Shuffle):
        return Contestant(name, "reference", run, NANOSECONDS, facts=facts)
    return Contestant(name, "ours", run, NANOSECONDS, goal=Goal("value", 100), facts=facts)


def by_epoch(work: Work, name: str, role: Role, epoch: Callable[[], Keys]) -> Contestant:
    """Return a contestant that makes the keys of a whole epoch at once."""

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            epoch()
        return Measurement(repeats * work.blocks * RECORDS, time.perf_counter() - started)

    return Contestant(name, role, run, NANOSECONDS, facts=partial(_facts, epoch), max_rounds=3)


def _buffered(blocks: int) -> Keys:
    """Return the keys of shuffled blocks, read one after the other through a shuffle buffer."""
    generator = random.Random(7)
    order = generator.sample(range(blocks), blocks)
    buffer: list[int] = []
    keys: list[int] = []
    for key in chain.from_iterable(range(number * RECORDS, (number + 1) * RECORDS) for number in order):
        if len(buffer) < BUFFER:
            buffer.append(key)
        else:
            place = generator.randrange(BUFFER)
            keys.append(buffer[place])
            buffer[place] = key
    generator.shuffle(buffer)
    return np.array(keys + buffer)


def _facts(epoch: Callable[[], Keys]) -> Mapping[str, float]:
    keys = epoch()
    means = keys[: len(keys) // ROWS * ROWS].reshape(-1, ROWS).mean(axis=1)
    by_chance = len(keys) ** 2 / 12 / ROWS
    blocks = keys // RECORDS
    order = np.argsort(blocks, kind="stable")  # the positions of each block, in order
    begins = np.flatnonzero((np.diff(blocks[order], prepend=-1) != 0) | (np.diff(order, prepend=0) > PATIENCE * ROWS))
    spans = order[np.append(begins[1:], len(order)) - 1] - order[begins] + 1
    return {
        "variance of means": float(means.var() / by_chance),
        "open blocks": float(spans.sum() / len(keys)),
        "openings of a block": float(len(begins) / (blocks.max() + 1)),
    }

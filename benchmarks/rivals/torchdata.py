"""torchdata's StatefulDataLoader: its state, the time to resume from it, and what other ranks continue with."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import pickle
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from benchmarks.macro import elastic, import_time, resume, resume_kinds
from benchmarks.rivals import Contestants
from benchmarks.scenario import MILLISECONDS, Contestant


class Numbers:
    """The records of `resume`."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: int) -> int:
        return resume_kinds.negate(key)


def _make(work: resume.Work) -> StatefulDataLoader[int]:
    numbers: Any = Numbers(work.rival_count)  # torch needs no base class, though its types require one
    return StatefulDataLoader(numbers, batch_size=work.batch_size, shuffle=True)


def _resume(work: resume.Work, _: ExitStack) -> tuple[Contestant, ...]:
    contestants: list[Contestant] = []
    for step in work.rival_steps:
        loader = _make(work)
        for _batch in zip(range(step), loader, strict=False):
            pass
        state = loader.state_dict()
        name = f"torchdata inline, step {step:,}"
        ready = partial(_seconds, work, state, first_batch=False)
        first = partial(_seconds, work, state, first_batch=True)
        contestants += [
            Contestant(f"{name}: ready", "rival", resume.timed(ready), MILLISECONDS),
            Contestant(f"{name}: first batch", "rival", resume.timed(first), MILLISECONDS),
            resume.state_bytes(f"{name}: state, pickled", "rival", pickle.dumps(state)),
        ]
    return tuple(contestants)


def _seconds(work: resume.Work, state: dict[str, object], *, first_batch: bool) -> float:
    """Return the seconds from a state to a loader's iterator at that state, or to its first batch."""
    started = time.perf_counter()
    loader = _make(work)
    loader.load_state_dict(state)
    iterator = iter(loader)
    if first_batch:
        next(iterator)
    return time.perf_counter() - started


def _import(work: import_time.Work, _: ExitStack) -> tuple[Contestant, ...]:
    return (import_time.importing(work, "import torchdata.stateful_dataloader", "rival"),)


def _elastic(work: elastic.Work, _: ExitStack) -> tuple[Contestant, ...]:
    numbers: Any = range(work.rows)

    def run(ranks: int, steps: int | None, states: object) -> tuple[list[int], object]:
        """Each rank loads the state of a rank before, and its batches have its part of the global batch."""
        rows: list[int] = []
        after: list[object] = []
        for rank in range(ranks):
            sampler = StatefulDistributedSampler(numbers, ranks, rank, seed=7)
            loader = StatefulDataLoader(numbers, batch_size=work.batch_size // ranks, sampler=sampler)
            if isinstance(states, list):
                loader.load_state_dict(states[rank % len(states)])
            rows += (int(row) for batch in elastic.taken(loader, steps) for row in batch)
            after.append(loader.state_dict())
        return rows, after

    return elastic.contestants("torchdata, StatefulDistributedSampler", "rival", run, work)


CONTESTANTS: dict[str, Contestants] = {"resume": _resume, "import": _import, "elastic": _elastic}

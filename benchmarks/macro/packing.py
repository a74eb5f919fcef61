"""Documents packed into sequences of 2,048 tokens, with segment ids and positions.

The limit is a C loop that packs by first fit and writes the rows of new arrays, 64 sequences a call (see `packing.c`).
Documents have lognormal lengths, 600 tokens on average, and are slices of one array in memory. With a function above
the batches, workers should never be slower than none.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.macro.tokens import compile_c
from benchmarks.scenario import Contestant, Goal, Measurement, Output, Role, Scenario, per_second

UNIT = per_second("tokens")
CLAIM = "every document once"
LIMIT = "C first fit into fresh arrays"
BINS = 64  # open sequences, for all contestants
ROWS = 64  # sequences of a batch

Sequences = Iterable[dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Documents of uint16 tokens in one array, none longer than a sequence."""

    count: int
    capacity: int = 2048
    tokens: NDArray[np.uint16] = field(init=False)
    starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(7)
        lengths = generator.lognormal(np.log(600) - 0.5, 1, self.count).astype(np.int64).clip(1, self.capacity)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "tokens", generator.integers(1, 1 << 16, starts[-1], np.uint16))

    @property
    def total(self) -> int:
        """The number of tokens in all documents."""
        return len(self.tokens)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: int) -> NDArray[np.uint16]:
        return self.tokens[self.starts[key] : self.starts[key + 1]]

    def read(self, keys: NDArray[np.int64]) -> list[NDArray[np.uint16]]:
        """Return several documents as views."""
        tokens = self.tokens
        ends = zip(self.starts[keys].tolist(), self.starts[keys + 1].tolist(), strict=True)
        return [tokens[start:stop] for start, stop in ends]


def build(bench: Bench) -> Scenario:
    """Return the scenario: the limit, a hand-written loop, Penstock in order and planned, and rivals."""
    work = Work(500 if bench.smoke else 50_000)
    lengths = np.diff(work.starts)
    documents = ps.read(work)
    batched = documents.pack(work.capacity).batch(ROWS)
    above = batched.map(picked)
    planned = documents.pack(work.capacity, lengths=lengths).batch(ROWS).map(picked)
    return Scenario(
        "packing",
        f"{work.count:,} documents, {work.total / work.count:,.0f} tokens on average, into {work.capacity:,}",
        (
            *bench.rivals("packing", work),
            _limit(bench, work),
            contestant(work, "first fit by hand, NumPy", "reference", partial(first_fit, work)),
            _ours(bench, work, "penstock", documents.pack(work.capacity)),
            _ours(bench, work, f"penstock, batches of {ROWS}", batched, goal=Goal("share", 0.3)),
            _ours(bench, work, "penstock, planned", documents.pack(work.capacity, lengths=lengths)),
            *(_in_place(bench, work, above, place, "") for place in ("inline", "threads", "processes")),
            *(_in_place(bench, work, planned, place, "planned, ") for place in ("inline", "processes")),
        ),
    )


def picked(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return what a model takes: the cheapest function above the batch."""
    return {name: batch[name] for name in ("tokens", "segment_ids", "positions")}


def _in_place(bench: Bench, work: Work, dataset: ps.Dataset[Any], place: Place, kind: str) -> Contestant:
    """Return a contestant with a function above the batches; with workers it is compared with the inline one."""
    name, loader = open_loader(bench.scope, dataset, place)
    above = f", {kind}a function above"
    limit, goal = (LIMIT, Goal("share", 0.3)) if place == "inline" else (f"penstock inline{above}", Goal("share", 1))
    return contestant(work, name + above, "ours", lambda: loader, goal, limit)


def contestant(
    work: Work,
    name: str,
    role: Role,
    sequences: Callable[[], Sequences],
    goal: Goal | None = None,
    limit: str = LIMIT,
) -> Contestant:
    """Return a contestant that makes sequences, or batches of them, measured in tokens of data."""

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            for _sequence in sequences():
                pass
        return Measurement(repeats * work.total, time.perf_counter() - started)

    def facts() -> dict[str, float]:
        rows = sum(np.size(each["tokens"]) // work.capacity for each in sequences())
        return {"fill, %": 100 * work.total / (rows * work.capacity)}

    output = Output(CLAIM, lambda: pieces(work, sequences()), ordered=False)
    against = () if role == "limit" else (limit,)
    return Contestant(name, role, run, UNIT, against=against, goal=goal, output=output, facts=facts)


def pieces(work: Work, sequences: Sequences) -> Iterator[NDArray[np.uint16]]:
    """Yield the documents of each sequence as rows padded to its length: the same set for every way of packing."""
    for each in sequences:
        tokens, ids = (np.reshape(each[name], (-1, work.capacity)) for name in ("tokens", "segment_ids"))
        for row, numbers in zip(tokens, ids, strict=True):
            found = np.zeros((int(numbers.max()), work.capacity), np.uint16)
            for number in range(len(found)):
                document = row[numbers == number + 1]
                found[number, : len(document)] = document
            yield found


def _ours(bench: Bench, work: Work, name: str, dataset: ps.Dataset, goal: Goal | None = None) -> Contestant:
    loader = bench.scope.enter_context(ps.Loader(dataset))
    return contestant(work, name, "ours", lambda: loader, goal)


def first_fit(work: Work) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield sequences from a simple hand-written loop."""
    rooms: list[int] = []
    opened: list[list[NDArray[np.uint16]]] = []
    for number in range(len(work)):
        document = work[number]
        place = next((place for place, room in enumerate(rooms) if room >= len(document)), None)
        if place is None:
            if len(rooms) == BINS:
                rooms.pop(0)
                yield _written(work, opened.pop(0))
            place = len(rooms)
            rooms.append(work.capacity)
            opened.append([])
        rooms[place] -= len(document)
        opened[place].append(document)
        if rooms[place] == 0:
            rooms.pop(place)
            yield _written(work, opened.pop(place))
    for documents in opened:
        yield _written(work, documents)


def _written(work: Work, documents: list[NDArray[np.uint16]]) -> dict[str, NDArray[Any]]:
    tokens = np.zeros(work.capacity, np.uint16)
    ids, positions = np.zeros(work.capacity, np.int32), np.zeros(work.capacity, np.int32)
    at = 0
    for number, document in enumerate(documents, start=1):
        end = at + len(document)
        tokens[at:end] = document
        ids[at:end] = number
        positions[at:end] = np.arange(len(document))
        at = end
    return {"tokens": tokens, "segment_ids": ids, "positions": positions}


def _limit(bench: Bench, work: Work) -> Contestant:
    library = compile_c(Path(__file__).with_name("packing.c"), bench.directory)
    library.packer_bytes.restype = ctypes.c_int64
    library.pack.restype = ctypes.c_int64
    library.pack.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 3
    return contestant(work, LIMIT, "limit", partial(limit_batches, library, work))


def limit_batches(library: ctypes.CDLL, work: Work) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield batches of sequences, each filled by one call of `pack`."""
    packer = np.zeros(library.packer_bytes(), np.uint8)
    before = packer.ctypes.data, work.tokens.ctypes.data, work.starts.ctypes.data, work.count, work.capacity, ROWS
    filled = ROWS
    while filled == ROWS:
        tokens = np.empty((ROWS, work.capacity), np.uint16)
        ids, positions = (np.empty((ROWS, work.capacity), np.int32) for _ in range(2))
        filled = library.pack(*before, tokens.ctypes.data, ids.ctypes.data, positions.ctypes.data)
        if filled:
            yield {"tokens": tokens[:filled], "segment_ids": ids[:filled], "positions": positions[:filled]}

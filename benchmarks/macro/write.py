"""A dataset written as Arrow files, beside loops that people write with pyarrow and a pool of processes.

Both write the same elements to as many files of as many rows, bring each to the disk, and take its checksum. The first
pair runs in one thread, over elements that cost a microsecond, so that the overhead shows; the second in two processes,
over elements that cost about fifty, so that the start of the processes doesn't hide the rest. Rivals write formats of
their own, as few files, and neither bring them to the disk nor, but for Streaming, take checksums.
"""

import hashlib
import importlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.scenario import Batch, Contestant, Goal, Measurement, Output, Role, Scenario, per_second

GROUP = 2000  # rows of a record batch of the loops
SHARDS = 4
MEAN_BYTES = 600  # of an element, or a little less
PROCESSES = 2
RIVAL_ROUNDS = 2  # some take half a minute each
ALONE = "pyarrow, one thread"
POOL = f"pyarrow, pool of {PROCESSES}"
Make = Callable[[int], dict[str, Any]]


def build(bench: Bench) -> Scenario:
    """Return the scenario: `write` and the loops.

    Raises:
        ImportError: pyarrow isn't installed; the group `interop` has it.
    """
    importlib.import_module("pyarrow")
    count = 400 if bench.smoke else 100_000
    cheap, costly = Work(cheap_text, count, bench.directory / "cheap"), Work(text, count, bench.directory / "costly")
    return Scenario(
        "write",
        f"{count:,} texts of 0.2 to 0.9 kB with a label, as {SHARDS} Arrow files",
        (
            contestant(cheap, ALONE, "limit", partial(alone, cheap)),
            _ours(cheap, "write, one thread", 0, ALONE),
            contestant(costly, POOL, "limit", partial(pooled, costly)),
            _ours(costly, f"write, {PROCESSES} processes", PROCESSES, POOL),
            *bench.rivals("write", (cheap, costly)),
        ),
    )


def cheap_text(number: int) -> dict[str, Any]:
    """Return an element that is made in about a microsecond."""
    return {"text": f"{number} ".ljust(200 + number * 7919 % 700, "x"), "label": number % 10}


def text(number: int) -> dict[str, Any]:
    """Return an element whose words were sorted."""
    words = f"{number} the words of a text that a conversion normalises before it is written ".split() * 10
    return {"text": " ".join(sorted(words))[: 200 + number * 7919 % 700], "label": number % 10}


@dataclass(frozen=True, slots=True)
class Work:
    """Elements 0 to `count`, and the folder that they are written to."""

    make: Make
    count: int
    folder: Path

    @property
    def shard_bytes(self) -> int:
        """The size of a file, about."""
        return self.count * MEAN_BYTES // SHARDS

    def emptied(self) -> Path:
        """Return the folder, created and empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return self.folder


def ours(work: Work, num_workers: int) -> None:
    """Write all elements by `write`."""
    dataset = ps.range(work.count).map(work.make)
    ps.write(dataset, work.emptied(), shard_bytes=work.shard_bytes, num_workers=num_workers, progress=False)


def alone(work: Work) -> None:
    """Write all elements in a loop."""
    work.emptied()
    for shard in range(SHARDS):
        write_shard(work, shard)


def pooled(work: Work) -> None:
    """Write all elements by a pool of processes."""
    work.emptied()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for _ in pool.imap(partial(write_shard, work), range(SHARDS)):
            pass


def write_shard(work: Work, shard: int) -> str:
    """Write one file of elements, and return its checksum."""
    pyarrow: Any = importlib.import_module("pyarrow")
    rows = -(-work.count // SHARDS)
    begin, end = shard * rows, min((shard + 1) * rows, work.count)
    schema = pyarrow.schema({"text": pyarrow.string(), "label": pyarrow.int64()})
    path = work.folder / f"{shard:05}.arrow"
    with pyarrow.ipc.new_file(str(path), schema) as writer:
        for first in range(begin, end, GROUP):
            elements = [work.make(number) for number in range(first, min(first + GROUP, end))]
            writer.write_batch(pyarrow.RecordBatch.from_pylist(elements, schema=schema))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ours(work: Work, name: str, num_workers: int, against: str) -> Contestant:
    made = contestant(work, name, "ours", partial(ours, work, num_workers))
    return replace(made, against=(against,), goal=Goal("share", 0.9))


def arrow_rows(work: Work) -> Iterator[dict[str, Any]]:
    """Yield the rows of all Arrow files."""
    pyarrow: Any = importlib.import_module("pyarrow")
    for path in sorted(work.folder.glob("*.arrow")):
        yield from pyarrow.ipc.open_file(str(path)).read_all().to_pylist()


def contestant(
    work: Work,
    name: str,
    role: Role,
    write: Callable[[], object],
    rows: Callable[[Work], Iterable[Mapping[str, Any]]] = arrow_rows,
    *,
    ordered: bool = True,
) -> Contestant:
    """Return a contestant that is timed over whole conversions.

    Args:
        work: the elements.
        name: the contestant's name.
        role: its role.
        write: writes all elements into the folder, which it empties.
        rows: reads what was written.
        ordered: whether it keeps the order of the elements.
    """

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            write()
        return Measurement(repeats * work.count, time.perf_counter() - started)

    def output() -> Iterator[Batch]:
        write()
        for row in rows(work):
            content = f"{row['label']} {row['text']}".encode()
            yield np.frombuffer(hashlib.sha256(content).digest(), np.uint8)[np.newaxis]

    claim = Output(f"the rows of {work.folder.name}", output, ordered)
    max_rounds = RIVAL_ROUNDS if role == "rival" else None
    return Contestant(name, role, run, per_second("elements"), output=claim, max_rounds=max_rounds)

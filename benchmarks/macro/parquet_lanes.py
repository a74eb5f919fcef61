"""Batches from Parquet files in shuffled order, beside a scan in the order of the files.

The limit is a loop over pyarrow's `iter_batches`. All contestants give the same rows, as a list of texts and an array
of labels for each batch. Penstock's shuffle by blocks has `LIVE` row groups open and keeps a few more. Its facts are
how often a group is decoded in an epoch, by all processes together, and the memory of the groups that they share.
Rivals read their own formats, of the same texts.
"""

import importlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Batch, Contestant, Measurement, Output, Role, Scenario, per_second
from penstock.sources import Parquet, Source

UNIT = per_second("records")
SCAN = "pyarrow, in order"
ROWS = 256  # of a batch
GROUP = 1024  # rows of a row group
FILES = 4
LIVE = 32  # row groups
KEPT = 40  # row groups, at least as many as are live
MEAN_BYTES = 600  # of a row, or a little less
RIVAL_ROUNDS = 3  # some take ten seconds each
Columns = tuple[Sequence[str], Any]  # the texts and the labels of a batch


@dataclass(frozen=True, slots=True)
class Work:
    """Parquet files of texts of 0.2 to 0.9 kB with labels."""

    folder: Path
    texts: Sequence[str]

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [self.folder / f"{number}.parquet" for number in range(FILES)]

    @property
    def groups(self) -> int:
        """The number of row groups of all files."""
        return len(self.texts) // GROUP


def build(bench: Bench) -> Scenario:
    """Return the scenario: the scan, the shuffle by blocks, a uniform shuffle that keeps all groups, and rivals.

    Raises:
        ImportError: pyarrow isn't installed; the group `interop` has it.
    """
    groups = 8 if bench.smoke else 100
    lengths = np.random.default_rng(7).integers(200, 900, groups * GROUP)
    work = Work(bench.directory, [f"{number} ".ljust(length, "x") for number, length in enumerate(lengths.tolist())])
    _write(work)
    return Scenario(
        "parquet-lanes",
        f"{len(work.texts):,} texts of 0.2 to 0.9 kB with a label, in {work.groups} row groups of {FILES} Parquet "
        f"files, in batches of {ROWS}",
        (
            contestant(work, SCAN, "limit", partial(_scanned, work)),
            _ours(bench, work, "inline"),
            _ours(bench, work, "threads", 2),
            _ours(bench, work, "processes", 2 if bench.smoke else 4),
            _ours(bench, work, "inline", is_lanes=False),
            *bench.rivals("parquet-lanes", work),
        ),
    )


def _write(work: Work) -> None:
    pa: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows = len(work.texts) // FILES
    for number, path in enumerate(work.paths):
        labels = np.arange(number * rows, (number + 1) * rows)
        table = pa.table({"text": work.texts[number * rows : (number + 1) * rows], "label": labels})
        parquet.write_table(table, path, row_group_size=GROUP)


def _scanned(work: Work) -> Iterator[Columns]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    for path in work.paths:
        with parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches(ROWS):
                yield batch.column("text").to_pylist(), batch.column("label").to_numpy()


def _ours(bench: Bench, work: Work, place: Place, num_workers: int = 0, *, is_lanes: bool = True) -> Contestant:
    kept = KEPT if is_lanes else 2 * work.groups
    source = Parquet(work.paths, cache=work.folder, decoded_bytes=kept * GROUP * MEAN_BYTES)
    where, loader = open_loader(bench.scope, _dataset(source, is_lanes=is_lanes), place, num_workers)
    made = contestant(work, f"{where}, {'by blocks' if is_lanes else 'uniform'}", "ours", partial(_columns, loader))

    def facts() -> Mapping[str, float]:
        source = Counted(Parquet(work.paths, cache=work.folder, decoded_bytes=kept * GROUP * MEAN_BYTES), work.folder)
        with ExitStack() as scope:
            _, loader = open_loader(scope, _dataset(source, is_lanes=is_lanes), place, num_workers)
            others = shared_bytes()
            kept_bytes = max(shared_bytes() for _ in loader) - others
        found = {"decodings of a group": source.reads() / work.groups}
        return found if place == "inline" else {**found, "shared MB": kept_bytes / 1e6}

    return replace(made, facts=facts)


def _dataset(source: Source, *, is_lanes: bool) -> ps.Dataset[Any]:
    records = ps.read(source, seed=7)
    shuffled = records.shuffle(blocks=True, live=LIVE, rows=ROWS) if is_lanes else records.shuffle()
    return shuffled.batch(ROWS)


def _columns(loader: Iterable[Any]) -> Iterator[Columns]:
    for batch in loader:
        yield batch["text"], batch["label"]


def contestant(work: Work, name: str, role: Role, batches: Callable[[], Iterable[Columns]]) -> Contestant:
    """Return a contestant that is timed over whole passes; its batches are texts and labels."""

    def run(repeats: int) -> Measurement:
        amount = 0
        started = time.perf_counter()
        for _ in range(repeats):
            for texts, _ in batches():
                amount += len(texts)
        return Measurement(amount, time.perf_counter() - started)

    def output() -> Iterator[Batch]:
        for texts, labels in batches():
            numbers = [int(text[: text.index(" ")]) for text in texts]
            yield np.stack([numbers, [len(text) for text in texts], np.asarray(labels)], axis=1)

    against = () if role == "limit" else (SCAN,)
    claim = Output(f"{len(work.texts):,} texts", output, ordered=False)
    max_rounds = RIVAL_ROUNDS if role == "rival" else None
    return Contestant(name, role, run, UNIT, against=against, output=claim, max_rounds=max_rounds)


def shared_bytes() -> int:
    """Return the size of the decoded groups that this process shares with others; 0 where the system can't."""
    folder = Path("/proc/self/fd")
    found: dict[int, int] = {}
    for path in folder.iterdir() if folder.exists() else ():
        with suppress(OSError):  # the descriptor of the folder itself
            if "penstock-blocks" in os.readlink(path):
                status = path.stat()
                found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


class Counted:
    """A source whose reads of row groups are counted, in all processes.

    Args:
        source: the source.
        folder: a folder for a file, to which each read adds a byte.
    """

    def __init__(self, source: Parquet, folder: Path) -> None:
        self.source = source
        self.blocks = source.blocks
        self.log = folder / "reads"
        self.log.write_bytes(b"")

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: int, /) -> object:
        return self.read([key])[0]

    def read(self, keys: Sequence[int]) -> list[object]:
        """Return rows."""
        with counted_reads(self.log):
            return self.source.read(keys)

    def reads(self) -> int:
        """Return the number of reads."""
        return self.log.stat().st_size


_counting = threading.Lock()  # threads read at once: only the first one patches, and the last one ends that
_readers: list[Path] = []


@contextmanager
def counted_reads(log: Path) -> Generator[None]:
    """Add a byte to a file for each row group that is read meanwhile, also by other threads that count."""
    reader: Any = importlib.import_module("pyarrow.parquet").ParquetFile
    with _counting:
        _readers.append(log)
        if len(_readers) == 1:
            reader.read_row_group = _counted(reader.read_row_group, log)
    try:
        yield
    finally:
        with _counting:
            _readers.pop()
            if not _readers:
                reader.read_row_group = inspect.unwrap(reader.read_row_group)


def _counted(read: Callable[..., object], log: Path) -> Callable[..., object]:
    @wraps(read)
    def counted(*args: object, **options: object) -> object:
        with log.open("ab") as file:
            file.write(b".")
        return read(*args, **options)

    return counted

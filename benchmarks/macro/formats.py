"""Random records of files: the time of one record by its key, alone and in reads of 256 keys.

The limit of the sources reads each text by `os.pread` from a file that has nothing else, and makes a str of it. A
Hugging Face dataset is compared with its own reads of the same keys. Beside a rival's reads of its own format are ours
of the same files.
"""

import importlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.scenario import MICROSECONDS, Batch, Contestant, Goal, Measurement, Output, Scenario
from penstock.sources import Arrow, Bagz, Parquet, Tar, as_source, read_records

KEYS = 256  # in a read
GROUP = 1000  # rows of a row group, and of a record batch
PREAD = "os.pread, one text"
ONE_KEY = "datasets, dataset[key]"
MANY_KEYS = f"datasets, {KEYS} keys"
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of 0.2 to 0.9 kB, each with a label, and the keys that are read, in random order."""

    texts: Sequence[str]
    keys: NDArray[np.int64]
    folder: Path


def build(bench: Bench) -> Scenario:
    """Return the scenario: `os.pread`, and the same texts in an Arrow file, a Parquet file and a `Dataset`.

    Raises:
        ImportError: pyarrow or datasets isn't installed; the group `interop` has them.
    """
    count = 600 if bench.smoke else 20_000
    random = np.random.default_rng(7)
    texts = [f"{number} ".ljust(length, "x") for number, length in enumerate(random.integers(200, 900, count).tolist())]
    work = Texts(texts, random.permutation(count).astype(np.int64)[: count - count % KEYS], bench.directory)
    arrow, parquet = _write(work, bench.directory)
    mapped = Arrow(arrow, cache=bench.directory)
    kept = Parquet(parquet, cache=bench.directory)
    dataset: Any = importlib.import_module("datasets").Dataset.from_file(str(arrow))
    rows = as_source(dataset)
    return Scenario(
        "formats",
        f"{count:,} texts of 0.2 to 0.9 kB with a label; time per record",
        (
            _limit(one_by_one(work, PREAD, _preads(bench, work))),
            _compared(one_by_one(work, "Arrow, source[key]", mapped.__getitem__), PREAD, 0.5),
            _compared(at_once(work, f"Arrow, {KEYS} keys", partial(read_records, mapped)), PREAD, 0.5),
            _compared(at_once(work, f"Parquet, {KEYS} keys, groups kept", partial(read_records, kept)), PREAD, 0.5),
            _decoding(work, parquet, bench.directory),
            _compared(one_by_one(work, "Tar, source[key]", _tar(bench, work)), PREAD, 0.5),
            _compared(one_by_one(work, "Bagz, source[key]", _bagz(bench, work)), PREAD, 0.5),
            _limit(one_by_one(work, ONE_KEY, dataset.__getitem__)),
            _compared(one_by_one(work, "ps.read(dataset), one key", rows.__getitem__), ONE_KEY, 3),
            _limit(at_once(work, MANY_KEYS, lambda keys: dataset.__getitems__(keys.tolist()))),
            _compared(at_once(work, f"ps.read(dataset), {KEYS} keys", partial(read_records, rows)), MANY_KEYS, 1),
            *bench.rivals("formats", work),
        ),
    )


def _write(work: Texts, directory: Path) -> tuple[Path, Path]:
    """Write the texts as an Arrow stream and as a Parquet file."""
    pa: Any = importlib.import_module("pyarrow")
    ipc: Any = importlib.import_module("pyarrow.ipc")
    table = pa.table({"text": work.texts, "label": np.arange(len(work.texts))})
    arrow, parquet = directory / "texts.arrow", directory / "texts.parquet"
    with pa.OSFile(str(arrow), "wb") as sink, ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=GROUP)
    importlib.import_module("pyarrow.parquet").write_table(table, parquet, row_group_size=GROUP)
    return arrow, parquet


def _tar(bench: Bench, work: Texts) -> Callable[[int], Record]:
    path = bench.directory / "texts.tar"
    with tarfile.open(path, "w") as archive:
        for label, text in enumerate(work.texts):
            member = tarfile.TarInfo(f"{label:06}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    source = bench.scope.enter_context(Tar(path, cache=bench.directory))
    return lambda key: {"text": source[key]["txt"].decode(), "label": key}


def _bagz(bench: Bench, work: Texts) -> Callable[[int], Record]:
    path = bench.directory / "texts.bag"
    ends = np.cumsum([len(text) for text in work.texts]).astype("<u8")
    path.write_bytes("".join(work.texts).encode() + ends.tobytes())
    source = bench.scope.enter_context(Bagz(path, cache=bench.directory))
    return lambda key: {"text": source[key].decode(), "label": key}


def _preads(bench: Bench, work: Texts) -> Callable[[int], Record]:
    """Return a function that reads one text from a file of texts alone."""
    path = bench.directory / "texts"
    path.write_text("".join(work.texts))
    ends = np.cumsum([len(text) for text in work.texts]).tolist()
    starts = [0, *ends]
    descriptor = os.open(path, os.O_RDONLY)
    bench.scope.callback(os.close, descriptor)

    def read(key: int) -> Record:
        return {"text": os.pread(descriptor, ends[key] - starts[key], starts[key]).decode(), "label": key}

    return read


def one_by_one(work: Texts, name: str, read: Callable[[int], Record]) -> Contestant:
    """Return reads of a record each."""
    listed = work.keys.tolist()
    return _contestant(work, name, lambda: map(read, listed))


def at_once(work: Texts, name: str, read: Callable[[NDArray[np.int64]], Sequence[Record]]) -> Contestant:
    """Return reads of many records each."""

    def records() -> Iterator[Record]:
        for begin in range(0, len(work.keys), KEYS):
            yield from read(work.keys[begin : begin + KEYS])

    return _contestant(work, name, records)


def _decoding(work: Texts, path: Path, cache: Path) -> Contestant:
    """Return a pass in order over a source that keeps one group, so that each group is decoded once."""
    source = Parquet(path, cache=cache, decoded_bytes=0)
    in_order = replace(work, keys=np.sort(work.keys))
    contestant = at_once(in_order, "Parquet, in order, decoding", partial(read_records, source))
    return replace(contestant, output=None, goal=Goal("value", 1.2))


def _contestant(work: Texts, name: str, records: Callable[[], Iterator[Record]]) -> Contestant:
    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            for _ in records():
                pass
        return Measurement(repeats * len(work.keys), time.perf_counter() - started)

    def output() -> Iterator[Batch]:
        for record in records():
            yield np.array([int(record["text"].split()[0]), len(record["text"]), record["label"]])

    return Contestant(name, "ours", run, MICROSECONDS, output=Output("the records in random order", output))


def as_rival(contestant: Contestant) -> Contestant:
    """Return the contestant as another library's."""
    return replace(contestant, role="rival")


def _limit(contestant: Contestant) -> Contestant:
    return replace(contestant, role="limit")


def _compared(contestant: Contestant, limit: str, share: float) -> Contestant:
    return replace(contestant, against=(limit,), goal=Goal("share", share))

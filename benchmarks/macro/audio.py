"""WAV files of 1 to 8 seconds, decoded and padded to the length of their bucket.

The limit does the same in a plain loop: for each planned batch it decodes every file, and writes its samples into an
array of zeros.
"""

import io
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Batch, Contestant, Output, Scenario, per_second
from benchmarks.streams import passes

UNIT = per_second("recordings")
CLAIM = "every recording once"
LIMIT = "loop over planned batches"
PLACES: tuple[Place, ...] = ("inline", "threads", "processes")
ROWS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """A folder of recordings."""

    directory: Path
    count: int = 512
    rate: int = 16_000

    @property
    def boundaries(self) -> list[int]:
        """The largest number of samples in each bucket."""
        return [seconds * self.rate for seconds in (2, 4, 6, 8)]

    def lengths(self) -> list[int]:
        """Return the number of samples of each recording."""
        return [self.rate + key * 7919 * 104_729 % (7 * self.rate) for key in range(self.count)]

    def paths(self) -> list[Path]:
        """Return the files."""
        return [self.directory / f"{key:06d}.wav" for key in range(self.count)]

    def buckets(self) -> list[list[int]]:
        """Return the keys of each batch."""
        lengths, batches = self.lengths(), list[list[int]]()
        for low, high in zip([0, *self.boundaries[:-1]], self.boundaries, strict=True):
            keys = [key for key, length in enumerate(lengths) if low < length <= high]
            batches += [keys[start : start + ROWS] for start in range(0, len(keys), ROWS)]
        return batches


def build(bench: Bench) -> Scenario:
    """Return the scenario: the loop, Penstock in several places, and rivals."""
    work = Work(bench.directory, 24, 1_000) if bench.smoke else Work(bench.directory)
    write_recordings(work)
    batches = partial(_loop, work)
    limit = Contestant(LIMIT, "limit", passes(batches), UNIT, output=output(batches), repeats=1)
    ours = (_ours(bench, work, place) for place in PLACES)
    return Scenario(
        "audio",
        f"{work.count} WAV files of 1 to 8 s at {work.rate} samples/s, decoded and padded in buckets of {ROWS} rows",
        (limit, *ours, *bench.rivals("audio", work)),
    )


def write_recordings(work: Work) -> None:
    """Write the files."""
    for key, (path, length) in enumerate(zip(work.paths(), work.lengths(), strict=True)):
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(work.rate)
            samples = np.arange(key, key + length, dtype=np.int64).astype("<i2")
            samples[0] = key  # identifies the recording
            file.writeframes(samples.tobytes())


def decode(content: bytes) -> NDArray[np.float32]:
    """Return the samples of a file."""
    with wave.open(io.BytesIO(content)) as file:
        samples: NDArray[np.int16] = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples.astype(np.float32) / np.float32(32_768)


def element(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the element of a file."""
    return {"samples": decode(record["bytes"])}


def padded(rows: list[NDArray[np.float32]], width: int) -> NDArray[np.float32]:
    """Return a batch of recordings."""
    batch = np.zeros((len(rows), width), np.float32)
    for row, samples in enumerate(rows):
        batch[row, : len(samples)] = samples
    return batch


def width_of(work: Work, rows: list[NDArray[np.float32]]) -> int:
    """Return the number of samples in each row of a batch: its bucket's boundary."""
    longest = max(map(len, rows))
    return next(boundary for boundary in work.boundaries if longest <= boundary)


def _loop(work: Work) -> Iterator[Batch]:
    paths = work.paths()
    for keys in work.buckets():
        rows = [decode(paths[key].read_bytes()) for key in keys]
        yield padded(rows, width_of(work, rows))


def output(batches: Callable[[], Iterable[Batch]]) -> Output:
    """Return a contestant's output: the key of each recording, and the sum of its samples."""

    def keys_and_sums() -> Iterable[Batch]:
        for batch in batches():
            array = np.asarray(batch, np.float64) * 32_768
            yield np.stack([array[:, 0], array.sum(axis=1)], axis=1).astype(np.int64)

    return Output(CLAIM, keys_and_sums, ordered=False)


def _ours(bench: Bench, work: Work, place: Place) -> Contestant:
    files = ps.sources.Files(work.directory, "*.wav")
    recordings = ps.read(files, seed=7).map(element)
    dataset = recordings.bucket("samples", work.boundaries, rows=ROWS, lengths=work.lengths()).shuffle()
    name, loader = open_loader(bench.scope, dataset, place)

    def batches() -> Iterator[Batch]:
        for batch in loader:
            yield batch["samples"]

    return Contestant(name, "ours", passes(batches), UNIT, against=(LIMIT,), output=output(batches), repeats=1)

"""Clips of videos: 16 consecutive frames of 112x112 pixels, read from files of frames without the other frames.

The limit gathers the frames of each clip from mapped files straight into the batch, in a plain loop.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Batch, Contestant, Output, Scenario, per_second
from benchmarks.streams import passes

UNIT = per_second("clips")
CLAIM = "every clip once"
LIMIT = "loop over mapped files"
PLACES: tuple[Place, ...] = ("inline", "threads", "processes")
FRAMES = 16
STRIDE = 8
ROWS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """A folder of videos."""

    directory: Path
    count: int = 16
    longest: int = 192
    side: int = 112

    def lengths(self) -> list[int]:
        """Return the number of frames of each video."""
        return [self.longest - key * 13 % (self.longest // 2) for key in range(self.count)]

    def paths(self) -> list[Path]:
        """Return the files."""
        return [self.directory / f"{key:04d}.npy" for key in range(self.count)]

    def clips(self) -> list[tuple[int, int]]:
        """Return the video and the first frame of each clip."""
        return [
            (key, start) for key, length in enumerate(self.lengths()) for start in range(0, length - FRAMES + 1, STRIDE)
        ]


def build(bench: Bench) -> Scenario:
    """Return the scenario: the loop, Penstock in several places, and rivals."""
    work = Work(bench.directory, 3, 48, 8) if bench.smoke else Work(bench.directory)
    for key, (path, length) in enumerate(zip(work.paths(), work.lengths(), strict=True)):
        frames = np.random.default_rng(key).integers(0, 256, (length, work.side, work.side, 3), np.uint8)
        np.save(path, frames)
    batches = partial(_loop, work)
    limit = Contestant(LIMIT, "limit", passes(batches), UNIT, output=output(batches), repeats=1)
    return Scenario(
        "video",
        f"{len(work.clips())} clips: {FRAMES} frames of {work.side}x{work.side} pixels, shuffled, in batches of {ROWS}",
        (limit, *(_ours(bench, work, place) for place in PLACES), *bench.rivals("video", work)),
    )


class Videos:
    """Videos whose parts can be read."""

    def __init__(self, paths: list[Path]) -> None:
        self._frames = [np.load(path, mmap_mode="r") for path in paths]

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, key: int) -> NDArray[np.uint8]:
        return np.array(self._frames[key])

    def read_spans(self, keys: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return frames of videos."""
        return [np.array(self._frames[key][start:stop]) for key, start, stop in zip(keys, starts, stops, strict=True)]


def output(batches: Callable[[], Iterable[Batch]]) -> Output:
    """Return a contestant's output."""
    return Output(CLAIM, batches, ordered=False)


def _loop(work: Work) -> Iterator[Batch]:
    frames = [np.load(path, mmap_mode="r") for path in work.paths()]
    clips = work.clips()
    order: list[int] = np.random.default_rng(7).permutation(len(clips)).tolist()
    for first in range(0, len(order), ROWS):
        chosen = [clips[position] for position in order[first : first + ROWS]]
        batch = np.empty((len(chosen), FRAMES, work.side, work.side, 3), np.uint8)
        for row, (key, start) in enumerate(chosen):
            batch[row] = frames[key][start : start + FRAMES]
        yield batch


def _ours(bench: Bench, work: Work, place: Place) -> Contestant:
    clips = ps.read(Videos(work.paths()), seed=7).windows(FRAMES, STRIDE, lengths=work.lengths())
    name, loader = open_loader(bench.scope, clips.shuffle().batch(ROWS), place)
    batches = partial(iter, loader)
    return Contestant(name, "ours", passes(batches), UNIT, against=(LIMIT,), output=output(batches), repeats=1)

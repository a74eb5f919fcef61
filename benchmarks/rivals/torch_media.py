"""torch's DataLoader, and Penstock's replacement, on recordings in buckets and on clips of videos."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from benchmarks.macro import audio, video
from benchmarks.rivals.torch_processes import KINDS, Kind, stop
from benchmarks.scenario import Batch, Contestant, Output, Unit
from benchmarks.streams import passes

NUM_WORKERS = 2


class Recordings:
    """The recordings of `audio`."""

    def __init__(self, work: audio.Work) -> None:
        self.paths = work.paths()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> NDArray[np.float32]:
        return audio.decode(self.paths[key].read_bytes())


class Clips:
    """The clips of `video`."""

    def __init__(self, work: video.Work) -> None:
        self.paths = work.paths()
        self.clips = work.clips()
        self.mapped: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, position: int) -> NDArray[np.uint8]:
        if self.mapped is None:  # opened in each worker, since a memory map can't be pickled
            self.mapped = [np.load(path, mmap_mode="r") for path in self.paths]
        key, start = self.clips[position]
        return np.array(self.mapped[key][start : start + video.FRAMES])


def _collate(work: audio.Work, rows: list[NDArray[np.float32]]) -> torch.Tensor:
    return torch.from_numpy(audio.padded(rows, audio.width_of(work, rows)))


def of_audio(work: audio.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `audio`: a batch sampler gives the planned buckets, a function pads them."""
    opened = partial(_open, scope, Recordings(work), batch_sampler=work.buckets(), collate_fn=partial(_collate, work))
    return _each(opened, audio.UNIT, audio.output, audio.LIMIT)


def of_video(work: video.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `video`."""
    opened = partial(_open, scope, Clips(work), batch_size=video.ROWS, shuffle=True)
    return _each(opened, video.UNIT, video.output, video.LIMIT)


def _open(
    scope: ExitStack,
    dataset: Any,  # noqa: ANN401 - torch needs no base class, though its types say so
    kind: Kind,
    **options: Any,  # noqa: ANN401 - torch's own
) -> DataLoader[Any]:
    loader = kind.made(dataset, num_workers=NUM_WORKERS, persistent_workers=True, **options)
    scope.callback(stop, loader)
    return loader


def _each(
    opened: Callable[[Kind], DataLoader[Any]],
    unit: Unit,
    output: Callable[[Callable[[], Iterable[Batch]]], Output],
    limit: str,
) -> tuple[Contestant, ...]:
    made: list[Contestant] = []
    for kind in KINDS:
        batches: partial[Iterator[Batch]] = partial(iter, opened(kind))
        name = f"{kind.name}, {NUM_WORKERS} workers"
        contestant = Contestant(
            name, kind.role, passes(batches), unit, against=(limit,), output=output(batches), repeats=1
        )
        made.append(kind.compared(contestant))
    return tuple(made)

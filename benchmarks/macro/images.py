"""Photographs from JPEG files: read, decode, crop, mirror, and batch; all contestants use the same decoder.

Some contestants give images, and some pairs of images and labels, as a training would have them.

The limits are bare threads and bare processes, each of which makes every second batch: processes in reused memory,
threads in a new array. The crop and the mirroring of an image follow from its key, so all contestants give the same
images, in any order.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.photographs import HEIGHT, WIDTH, decoder, write_photographs
from benchmarks.macro.places import Place, open_loader
from benchmarks.processes.bare import Array, BareProcesses, Form
from benchmarks.scenario import Batch, Contestant, Goal, Output, Role, Scenario, per_second
from benchmarks.streams import passes

UNIT = per_second("images")
CLAIM = "every image once"
LIMITS = ("2 bare threads", "2 bare processes")
NUM_WORKERS = 2
CROP = 224
READY = 2  # batches that a bare thread may have ready


@dataclass(frozen=True, slots=True)
class Work:
    """A folder of files, and more images than files: every key has a file and its own crop."""

    folder: Path
    files: int
    count: int
    batch_size: int = 64

    @property
    def num_batches(self) -> int:
        """The number of batches of a pass."""
        return self.count // self.batch_size

    def path(self, key: int) -> Path:
        """Return the file of a key."""
        return self.folder / f"{key % self.files}.jpg"

    def load(self, key: int) -> NDArray[np.uint8]:
        """Return the image of a key, uint8 [224, 224, 3]: a view of what was decoded."""
        return self.decoded(key, self.path(key).read_bytes())

    def decoded(self, key: int, encoded: bytes) -> NDArray[np.uint8]:
        """Return the image of a key from the content of its file."""
        _, decode = decoder()
        mixed = (key * 0x9E3779B97F4A7C15) % 2**64
        top, left = (mixed >> 8) % (HEIGHT - CROP + 1), (mixed >> 32) % (WIDTH - CROP + 1)
        crop = decode(encoded)[top : top + CROP, left : left + CROP]
        return crop[:, ::-1] if mixed >> 63 else crop

    def labelled(self, key: int) -> tuple[NDArray[np.uint8], int]:
        """Return the image of a key, and a label."""
        return self.load(key), key

    def contiguous(self, key: int) -> tuple[NDArray[np.uint8], int]:
        """Return the image of a key in its own memory, for loaders that don't take mirrored views, and a label."""
        return np.ascontiguousarray(self.load(key)), key

    def fill(self, number: int, out: Array) -> None:
        """Make a batch."""
        for row in range(self.batch_size):
            out[row] = self.load(number * self.batch_size + row)


def build(bench: Bench) -> Scenario:
    """Return the scenario: bare threads and processes, Penstock on both, and rivals."""
    work = Work(bench.directory, 8, 32, 8) if bench.smoke else Work(bench.directory, 384, 1536)
    num_bytes = write_photographs(work.folder, work.files)
    name, _ = decoder()
    return Scenario(
        "images",
        f"{work.count:,} JPEGs of {WIDTH} x {HEIGHT} and {num_bytes / work.files / 1e3:.0f} kB, decoded by {name}, "
        f"cropped to {CROP}, mirrored, in batches of {work.batch_size}",
        (
            *bench.rivals("images", work),
            contestant(work, LIMITS[0], "limit", lambda: threaded(work)),
            _bare_processes(bench, work),
            _ours(bench, work, "threads"),
            _ours(bench, work, "processes"),
            _ours(bench, work, "processes", 2 * NUM_WORKERS),  # two more processes than the usual number of processors
            _ours(bench, work, "isolated"),
            *(_ours_labelled(bench, work, place) for place in ("threads", "processes", "auto")),
        ),
    )


def _form(work: Work) -> Form:
    return Form((work.batch_size, CROP, CROP, 3), "uint8")


def _ours(bench: Bench, work: Work, place: Place, num_workers: int = NUM_WORKERS) -> Contestant:
    dataset = ps.range(work.count, seed=7).shuffle().map(work.load).batch(work.batch_size)
    name, loader = open_loader(bench.scope, dataset, place, num_workers)
    return contestant(work, name, "ours", lambda: loader, Goal("share", 0.97))


def _ours_labelled(bench: Bench, work: Work, place: Literal["threads", "processes", "auto"]) -> Contestant:
    dataset = ps.range(work.count, seed=7).shuffle().map(work.labelled).batch(work.batch_size)
    if place == "auto":
        loader = bench.scope.enter_context(ps.Loader(dataset, num_workers="auto"))
        name = "penstock, num_workers='auto'"
    else:
        name, loader = open_loader(bench.scope, dataset, place, NUM_WORKERS)
    return contestant(work, f"{name}, (image, label)", "ours", partial(images_of, loader), Goal("share", 0.97))


def images_of(batches: Iterable[Sequence[Batch]]) -> Iterator[Batch]:
    """Yield the images of batches that have labels, too."""
    for images, _ in batches:
        yield images


def _bare_processes(bench: Bench, work: Work) -> Contestant:
    @cache
    def opened() -> BareProcesses:
        bare = BareProcesses(work.fill, _form(work), NUM_WORKERS)
        bench.scope.callback(bare.close)
        return bare

    return contestant(work, LIMITS[1], "limit", lambda: opened().batches(work.num_batches))


def threaded(work: Work) -> Iterator[Array]:
    """Yield batches from bare threads, each of which makes every second one."""
    form = _form(work)
    ready: list[queue.Queue[Array]] = [queue.Queue(READY) for _ in range(NUM_WORKERS)]

    def make(worker: int) -> None:
        for number in range(worker, work.num_batches, NUM_WORKERS):
            batch = np.empty(form.shape, form.dtype)
            work.fill(number, batch)
            ready[worker].put(batch)

    threads = [threading.Thread(target=make, args=(worker,)) for worker in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for number in range(work.num_batches):
        yield ready[number % NUM_WORKERS].get()
    for thread in threads:
        thread.join()


def contestant(
    work: Work, name: str, role: Role, batches: Callable[[], Iterable[Batch]], goal: Goal | None = None
) -> Contestant:
    """Return a contestant that is timed over whole passes."""
    against = () if role == "limit" else LIMITS
    output = Output(f"{CLAIM}: {work.count:,}", batches, ordered=False)
    return Contestant(name, role, passes(batches), UNIT, against=against, goal=goal, output=output)

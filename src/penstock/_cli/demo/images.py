"""The demo on the user's images: they are decoded in batches, by a loader and a bare loop in turn.

The loader is also resumed with another number of workers, and its next batch compared.
"""

import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import penstock as ps
from penstock._cli.demo.report import (
    Axis,
    Chart,
    Claim,
    Page,
    Pixels,
    Section,
    Series,
    Tile,
    check_report,
    decode_picture,
    describe_machine,
    judge_resume,
    judge_state,
    picture_grid,
    print_claims,
    require_pillow,
    status_of,
)
from penstock._cli.terminal import Terminal

_BATCH_SIZE: Final = 32
_NUM_ROUNDS: Final = 7
_ROUND_SECONDS: Final = 1.2
_TRIED: Final = 64
_THUMBNAIL: Final = 112


@dataclass(frozen=True, slots=True)
class Decode:
    """Turns a record of an image folder into an image of shape (size, size, 3), uint8, and its label."""

    size: int

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a decoded record."""
        return {"image": decode_picture(record["bytes"], self.size), "label": record["label"]}


@dataclass(frozen=True, slots=True)
class Images:
    """The measured work: a source, some of its keys, the size of decoded images, and the number of workers."""

    source: ps.sources.ImageFolder
    keys: Sequence[int]
    size: int
    num_workers: int

    def dataset(self) -> ps.Dataset:
        """Return the dataset that the loader reads."""
        return ps.read(self.source, seed=7).select(self.keys).shuffle().map(Decode(self.size)).batch(_BATCH_SIZE)

    def run_bare(self, progress: Callable[[int], None]) -> None:
        """Do the same work in a plain loop: read, decode and stack, on one thread, without a library."""
        for start in range(0, len(self.keys), _BATCH_SIZE):
            keys = self.keys[start : start + _BATCH_SIZE]
            images = [decode_picture(Path(self.source.path_of(key)).read_bytes(), self.size) for key in keys]
            np.stack(images)
            np.array([self.source.labels[key] for key in keys])
            progress(len(images))


@dataclass(frozen=True, slots=True)
class Round:
    """The rates of one round, in records per second: the loader, and the bare loop over the same images."""

    loader: float
    bare: float


def measure(folder: Path, size: int, num_workers: int, report: Path, terminal: Terminal) -> int:
    """Time the loader beside a bare loop over the same images, resume it with other workers, and write the report.

    Args:
        folder: contains one folder of images per class.
        size: the width and height of decoded images, in pixels.
        num_workers: the loader's number of workers.
        report: the path of the HTML page.
        terminal: receives the text.

    Returns:
        The exit status, as `status_of` defines it.

    Raises:
        UsageError: the report's folder does not exist.
        SourceError: the path is not a folder, or contains no images.
        MissingDependencyError: Pillow is not installed.
    """
    check_report(report)
    require_pillow()
    source = ps.sources.ImageFolder(folder)
    terminal.line(terminal.colour(f"Penstock: {len(source):,} images in {len(source.classes)} class folders", "bold"))
    terminal.line(terminal.colour(f"  {folder.resolve()}", "dim"))
    images = Images(source, _choose_keys(source, size), size, num_workers)
    claims = _resume_elsewhere(images)
    rounds = _alternate(images, terminal)
    fed: dict[str, Any] = images.dataset()[0]
    _print_rates(rounds, f"{num_workers} worker{'' if num_workers == 1 else 's'}", terminal)
    print_claims(claims, terminal)
    captions = [source.classes[int(label)] for label in fed["label"]]
    page = images_page(rounds, claims, (list(fed["image"]), captions), f"{folder.resolve()}, {size} x {size} pixels")
    report.write_text(page.html(), encoding="utf-8")
    terminal.line(f"\n  the report   {report.resolve()}")
    return status_of(claims)


def _choose_keys(source: ps.sources.ImageFolder, size: int) -> list[int]:
    """Return keys spread evenly over the source, about as many as a plain loop decodes in 1.2 seconds."""
    tried = ps.read(source).select(_spread(len(source), _TRIED)).map(Decode(size))
    began = time.perf_counter()
    rate = sum(1 for _ in tried) / (time.perf_counter() - began)
    return _spread(len(source), max(2 * _BATCH_SIZE, int(rate * _ROUND_SECONDS)))


def _spread(length: int, count: int) -> list[int]:
    count = min(count, length)
    return [number * length // count for number in range(count)]


def _alternate(images: Images, terminal: Terminal) -> list[Round]:
    """Return the rates of seven rounds, in which the loader and the bare loop alternate in going first.

    Each makes one pass over the same images. An extra round before them, not counted, warms the page cache.
    """
    total = (_NUM_ROUNDS + 1) * 2 * len(images.keys)
    done = 0
    began = time.perf_counter()

    def progress(rows: int) -> None:
        nonlocal done
        done += rows
        rate = done / (time.perf_counter() - began)
        terminal.progress("images", done / total, f"{done:,} of {total:,} decoded · {rate:,.0f} records/s")

    rounds: list[Round] = []
    with ps.Loader(images.dataset(), num_workers=images.num_workers) as loader:

        def run_loader(report: Callable[[int], None]) -> None:
            for batch in loader:
                report(len(batch["label"]))

        for number in range(_NUM_ROUNDS + 1):
            rates = {True: 0.0, False: 0.0}
            for is_loader in (True, False) if number % 2 else (False, True):
                start = time.perf_counter()
                (run_loader if is_loader else images.run_bare)(progress)
                rates[is_loader] = len(images.keys) / (time.perf_counter() - start)
            rounds.append(Round(loader=rates[True], bare=rates[False]))
    return rounds[1:]


def _resume_elsewhere(images: Images) -> list[Claim]:
    """Return the claims that a loader with other workers resumes after one batch, equal and fast."""
    others = images.num_workers + 1
    with ps.Loader(images.dataset(), num_workers=images.num_workers) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        next(batches)
        state = loader.state_dict()
        expected = digest(next(batches))
    with ps.Loader(images.dataset(), num_workers=others) as loader:
        began = time.perf_counter()
        loader.load_state_dict(state)
        seconds = time.perf_counter() - began
        found = digest(next(iter(loader)))
    detail = (
        f"with {others} workers instead of {images.num_workers}, the next batch has the same SHA-256, {found[:16]}…"
    )
    if found != expected:
        detail = f"the next batch's SHA-256 is {expected[:16]}…, but {found[:16]}… when resumed with {others} workers"
    return [Claim("batches", found == expected, detail), judge_state(len(json.dumps(state))), judge_resume(seconds)]


def digest(batch: dict[str, Any]) -> str:
    """Return the SHA-256 of a batch's images and labels, in hex."""
    return hashlib.sha256(batch["image"].tobytes() + batch["label"].tobytes()).hexdigest()


def _print_rates(rounds: Sequence[Round], workers: str, terminal: Terminal) -> None:
    loader = statistics.median(entry.loader for entry in rounds)
    bare = statistics.median(entry.bare for entry in rounds)
    ratios = sorted(entry.loader / entry.bare for entry in rounds)
    terminal.line(f"  {'loader, ' + workers:<22} {loader:8,.0f} records/s")
    terminal.line(f"  bare loop, 1 thread    {bare:8,.0f} records/s")
    terminal.line(
        f"  loader / bare loop     {statistics.median(ratios):8.2f}   from {ratios[0]:.2f} to {ratios[-1]:.2f} "
        f"in {len(rounds)} alternating rounds; medians are shown"
    )


def images_page(
    rounds: Sequence[Round], claims: Sequence[Claim], fed: tuple[Sequence[Pixels], Sequence[str]], what: str
) -> Page:
    """Return the page.

    Args:
        rounds: the rounds, at least one.
        claims: the claims about the batches and the state.
        fed: the first batch's images, uint8 of shape (size, size, 3), and their class names.
        what: the folder of the images and their decoded size, as text.
    """
    loader = statistics.median(entry.loader for entry in rounds)
    bare = statistics.median(entry.bare for entry in rounds)
    ratio = statistics.median(entry.loader / entry.bare for entry in rounds)
    pictures, captions = fed
    return Page(
        title="Your images, beside a bare loop",
        lead=f"{what}: the same files, decoded alternately by the loader and by a plain loop on one thread.",
        tiles=[
            Tile(f"{loader:,.0f}", "/s", "records from the loader, median of the rounds"),
            Tile(f"{bare:,.0f}", "/s", "records from the bare loop on one thread"),
            Tile(f"{ratio:.2f}", "times", "the loader's rate over the bare loop's, median of the rounds"),
        ],
        claims=claims,
        sections=[
            Section(
                "Throughput",
                "Each round is one pass of each over the same images; they alternate in going first.",
                _chart(rounds).svg(),
            ),
            Section(
                "The first batch",
                f"{len(pictures)} images, with the names of their classes.",
                picture_grid([_thumbnail(pixels) for pixels in pictures], captions, is_pixelated=False),
            ),
        ],
        facts=describe_machine(),
    )


def _chart(rounds: Sequence[Round]) -> Chart:
    loader = [(float(number), entry.loader) for number, entry in enumerate(rounds, start=1)]
    bare = [(float(number), entry.bare) for number, entry in enumerate(rounds, start=1)]
    return Chart(
        label="Records per second of the loader and of the bare loop in each round",
        horizontal=Axis("round", 0.5, len(rounds) + 0.5),
        vertical=Axis("records/s", 0.0, max(rate for _, rate in (*loader, *bare)) * 1.15),
        series=[
            Series("loader", loader, "resumed", radius=5.0),
            Series("bare loop, one thread", bare, "plain", radius=4.0),
        ],
    )


def _thumbnail(pixels: Pixels) -> Pixels:
    """Return the image subsampled to at most twice the size at which it is shown."""
    return np.ascontiguousarray(pixels[:: max(1, len(pixels) // _THUMBNAIL), :: max(1, len(pixels) // _THUMBNAIL)])

"""The report on the user's images: a loader and a bare loop, alternating over the same files."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock._cli.demo.claims import Claim
from penstock._cli.demo.pictures import Pixels
from penstock._cli.demo.report.charts import Axis, Chart, Series
from penstock._cli.demo.report.page import Page, Section, Tile, picture_grid
from penstock._cli.versions import describe_machine

_THUMBNAIL: Final = 112


@dataclass(frozen=True, slots=True)
class Round:
    """The rates of one round, in records per second: the loader, and the bare loop over the same images."""

    loader: float
    bare: float


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

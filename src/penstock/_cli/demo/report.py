"""The report of a demo: its claims, and one self-contained HTML page with tiles, charts and pictures.

A claim states a promise of Penstock, is computed from what the demo measured, and may fail. The page has no scripts,
fonts or links to other files. Charts are inline SVG, coloured by the page's style sheet, so that they follow its light
and dark themes. Only this module of the demo uses Pillow.
"""

import base64
import io
import math
import os
import platform
import string
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock._cli.terminal import ENDED, FAILED, Terminal
from penstock._optional import need
from penstock.errors import UsageError

Point = tuple[float, float]
Pixels = NDArray[np.uint8]
MAX_STATE_BYTES: Final = 1000
MAX_RESUME_SECONDS: Final = 0.010
_STYLE: Final = Path(__file__).with_name("page.css")
_PACKAGES: Final = ("numpy", "pillow", "scikit-learn")
_WIDTH: Final = 920
_HEIGHT: Final = 300
_LEFT: Final = 62
_RIGHT: Final = 16
_TOP: Final = 34
_BOTTOM: Final = 46
_TEMPLATE: Final = string.Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<main>
<header>
<p class="brand">penstock demo</p>
<h1>$title</h1>
<p class="lead">$lead</p>
<p class="verdict $verdict_class">$verdict</p>
</header>
<dl class="tiles">
$tiles
</dl>
$body
<footer>
<table class="facts">
$facts
</table>
</footer>
</main>
</body>
</html>
""")


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        name: one or two words.
        holds: whether the runs satisfy it.
        detail: its figures; if it does not hold, the deviating values.
        is_timed: whether it depends on a time that was measured once, and so also on how busy the machine was.
    """

    name: str
    holds: bool
    detail: str
    is_timed: bool = False


def judge_state(num_bytes: int) -> Claim:
    """Return the claim that a loader's state is small; `num_bytes` is its length as JSON."""
    detail = f"the loader saves {num_bytes} bytes of JSON; the limit is {MAX_STATE_BYTES:,}"
    return Claim("state", 0 < num_bytes < MAX_STATE_BYTES, detail)


def judge_resume(seconds: float, first_batch_seconds: float | None = None) -> Claim:
    """Return the claim that a loader resumed quickly.

    Args:
        seconds: the duration of `load_state_dict`.
        first_batch_seconds: the wait for the first batch after that; shown, but without a limit.
    """
    detail = f"loading the state took {seconds * 1e3:.1f} ms; the limit is {MAX_RESUME_SECONDS * 1e3:.0f} ms"
    if first_batch_seconds is not None:
        detail += f". The first batch came after another {first_batch_seconds * 1e3:.1f} ms"
    return Claim("resume", seconds < MAX_RESUME_SECONDS, detail, is_timed=True)


def print_claims(claims: Sequence[Claim], terminal: Terminal) -> None:
    """Print each claim with ✓ or ✗ before it."""
    for claim in claims:
        mark = terminal.colour("✓", "green") if claim.holds else terminal.colour("✗", "red")
        terminal.entry(mark, claim.name, claim.detail)


def status_of(claims: Sequence[Claim]) -> int:
    """Return the exit status of a demo: 1 if a claim does not hold, else 0.

    A claim about a time is shown but ignored, since the machine may be busy.
    """
    return ENDED if all(claim.holds or claim.is_timed for claim in claims) else FAILED


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure in large type, with its unit and meaning."""

    figure: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading; `body` is HTML, the others are text."""

    title: str
    explanation: str
    body: str


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the report.

    Attributes:
        title: the result, in a few words.
        lead: a description of the experiment, in one or two sentences.
        tiles: the main figures.
        claims: the rows of the table of claims, which the verdict counts.
        sections: charts and pictures, in their order.
        facts: machine and versions, as (name, value).
    """

    title: str
    lead: str
    tiles: Sequence[Tile]
    claims: Sequence[Claim]
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]]

    def html(self) -> str:
        """Return the whole page."""
        num_failed = sum(not claim.holds for claim in self.claims)
        verdict = f"✓ All {len(self.claims)} claims hold"
        if num_failed:
            verdict = f"✗ {num_failed} of {len(self.claims)} claims {'does' if num_failed == 1 else 'do'} not hold"
        sections = [
            Section("Claims", "Each was computed from the logs of the runs and could have failed.", self._claims())
        ]
        return _TEMPLATE.substitute(
            title=escape(self.title),
            style=_STYLE.read_text(encoding="utf-8"),
            lead=escape(self.lead),
            verdict=escape(verdict),
            verdict_class="failed" if num_failed else "holds",
            tiles="\n".join(_tile(tile) for tile in self.tiles),
            body="\n".join(_section(section) for section in [*sections, *self.sections]),
            facts="\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self.facts),
        )

    def _claims(self) -> str:
        rows = "\n".join(
            f'<tr class="{"holds" if claim.holds else "failed"}"><td class="mark">{"✓" if claim.holds else "✗"}</td>'
            f"<th>{escape(claim.name)}</th><td>{escape(claim.detail)}</td></tr>"
            for claim in self.claims
        )
        return f'<table class="claims">\n{rows}\n</table>'


def check_report(path: Path) -> None:
    """Check, before the runs start, that the report can be written.

    Raises:
        UsageError: its folder does not exist, it is a folder itself, or the system forbids to write it.
    """
    written = path if path.exists() else path.parent
    if not path.parent.is_dir() or path.is_dir() or not os.access(written, os.W_OK):
        raise UsageError(f"--report must be a file that can be written, in a folder that exists; got {str(path)!r}")


def picture_grid(pictures: Sequence[Pixels], captions: Sequence[str], *, is_pixelated: bool) -> str:
    """Return a grid of pictures, each with its caption below; `is_pixelated` shows small ones with sharp pixels."""
    cells = "\n".join(
        f'<figure><img src="{as_data_address(encode_png(pixels))}" alt="{escape(caption)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for pixels, caption in zip(pictures, captions, strict=True)
    )
    return f'<div class="pictures{" pixelated" if is_pixelated else ""}">\n{cells}\n</div>'


def listing(path: Path) -> str:
    """Return a file's text, collapsed until it is clicked."""
    text = escape(path.read_text(encoding="utf-8"))
    return f"<details><summary>{escape(path.name)}</summary><pre><code>{text}</code></pre></details>"


def _tile(tile: Tile) -> str:
    figure = f'{escape(tile.figure)}<span class="unit">{escape(tile.unit)}</span>'
    return f"<div><dd>{figure}</dd><dt>{escape(tile.meaning)}</dt></div>"


def _section(section: Section) -> str:
    explanation = f"<p>{escape(section.explanation)}</p>"
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{explanation}\n{section.body}\n</section>"


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Attributes:
        name: the text in the legend.
        points: (x, y) from left to right.
        style: a class of the style sheet, which sets colour and width.
        radius: the radius of a dot at each point, in the chart's units; 0 for a line without dots.
        is_line: whether the points are joined.
    """

    name: str
    points: Sequence[Point]
    style: str
    radius: float = 0.0
    is_line: bool = True


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line at `x`, with a text at its top: to its right, or to its left if `is_left`."""

    x: float
    text: str
    style: str
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded span from `start` to `stop` on the x axis."""

    start: float
    stop: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title, its span, and whether it is logarithmic (base 10)."""

    title: str
    low: float
    high: float
    is_logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 at the low end to 1 at the high end, clipped."""
        low, high = self.low, self.high
        if self.is_logarithmic:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Return round values, at most about eight, from low to high."""
        if self.is_logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [digit * 10.0**power for power in powers for digit in (1, 3)]
            return [value for value in values if self.low <= value <= self.high]
        rough = (self.high - self.low) / 6 or 1.0
        unit = 10.0 ** math.floor(math.log10(rough))
        spacing = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        first = math.ceil(self.low / spacing)
        return [number * spacing for number in range(first, math.floor(self.high / spacing + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its series over two axes, with markers and bands, and a sentence for screen readers."""

    label: str
    horizontal: Axis
    vertical: Axis
    series: Sequence[Series]
    markers: Sequence[Marker] = ()
    bands: Sequence[Band] = ()

    def svg(self) -> str:
        """Return the chart as an SVG element."""
        parts = [
            f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.label)}">',
            *(self._band(band) for band in self.bands),
            *(self._horizontal_tick(value) for value in self.horizontal.ticks()),
            *(self._vertical_tick(value) for value in self.vertical.ticks()),
            f'<text class="title" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">'
            f"{escape(self.horizontal.title)}</text>",
            f'<text class="title" x="{_LEFT - 54}" y="16">{escape(self.vertical.title)}</text>',
            *(self._draw(series) for series in self.series),
            *(self._marker(marker) for marker in self.markers),
            "</svg>",
            self._legend(),
        ]
        return "\n".join(parts)

    def _x(self, value: float) -> float:
        return round(_LEFT + self.horizontal.share(value) * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - self.vertical.share(value) * (_HEIGHT - _TOP - _BOTTOM), 1)

    def _horizontal_tick(self, value: float) -> str:
        y = _HEIGHT - _BOTTOM + 17
        return f'<text class="tick" x="{self._x(value)}" y="{y}" text-anchor="middle">{_number(value)}</text>'

    def _vertical_tick(self, value: float) -> str:
        y = self._y(value)
        return (
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{_number(value)}</text>'
        )

    def _draw(self, series: Series) -> str:
        places = [(self._x(x), self._y(y)) for x, y in series.points]
        drawn = ""
        if series.is_line:
            path = " ".join(f"{x},{y}" for x, y in places)
            drawn = f'<polyline class="line {series.style}" points="{path}"/>'
        if series.radius:
            drawn += "".join(
                f'<circle class="dot {series.style}" cx="{x}" cy="{y}" r="{series.radius}">'
                f"<title>{escape(series.name)}: {_number(point[0])}, {point[1]:.6g}</title></circle>"
                for (x, y), point in zip(places, series.points, strict=True)
            )
        return drawn

    def _marker(self, marker: Marker) -> str:
        x = self._x(marker.x)
        anchor, shift = ("end", -6) if marker.is_left else ("start", 6)
        return (
            f'<line class="marker {marker.style}" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text class="note {marker.style}" x="{x + shift}" y="{_TOP + 2}" text-anchor="{anchor}">'
            f"{escape(marker.text)}</text>"
        )

    def _band(self, band: Band) -> str:
        left, right = self._x(band.start), self._x(band.stop)
        return (
            f'<rect class="band" x="{left}" y="{_TOP - 8}" width="{max(right - left, 1):.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM + 8}"><title>{escape(band.text)}</title></rect>'
        )

    def _legend(self) -> str:
        return f'<div class="legend">{"".join(_key(series) for series in self.series)}</div>'


def _key(series: Series) -> str:
    line = f'<line class="line {series.style}" x1="1" x2="25" y1="6" y2="6"/>' if series.is_line else ""
    dot = f'<circle class="dot {series.style}" cx="13" cy="6" r="{min(series.radius, 5)}"/>' if series.radius else ""
    return f'<span><svg viewBox="0 0 26 12" aria-hidden="true">{line}{dot}</svg>{escape(series.name)}</span>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 * max(1.0, abs(value)) else f"{value:.4g}"


def require_pillow() -> ModuleType:
    """Return Pillow's `Image` module.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    return need("PIL.Image", "Pillow", extra="demo")


def encode_png(pixels: Pixels) -> bytes:
    """Return the pixels, of shape (height, width) or (height, width, 3), as a PNG file's bytes, without loss."""
    file = io.BytesIO()
    require_pillow().fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def decode_picture(data: bytes, size: int) -> Pixels:
    """Decode an image of any format that Pillow knows, and return it resized bilinearly to (size, size, 3), uint8.

    A much larger JPEG is decoded at a half, a quarter or an eighth of its size, as its format allows.
    """
    image_module = require_pillow()
    with image_module.open(io.BytesIO(data)) as image:
        image.draft("RGB", (size, size))
        scaled: Any = image.convert("RGB").resize((size, size), image_module.Resampling.BILINEAR)
        return np.asarray(scaled)


def as_data_address(png: bytes) -> str:
    """Return a data URL that contains the whole picture."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def installed_version(package: str) -> str:
    """Return the version of an installed package; "not installed" if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe_machine() -> list[tuple[str, str]]:
    """Return (name, value) pairs that describe the versions and the machine of a measurement."""
    packages = ", ".join(f"{package} {installed_version(package)}" for package in _PACKAGES)
    return [
        ("versions", f"penstock {penstock.__version__}, Python {platform.python_version()}, {packages}"),
        ("machine", f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} processors"),
    ]

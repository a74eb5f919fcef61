"""Charts as inline SVG, coloured by the page's style sheet, so that they follow its light and dark themes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Point = tuple[float, float]

_WIDTH: Final = 920
_HEIGHT: Final = 300
_LEFT: Final = 62
_RIGHT: Final = 16
_TOP: Final = 34
_BOTTOM: Final = 46


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
    """A vertical line at `x` with a text at its top; on the line's left where `is_left`."""

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
        """Return the relative position of a value, 0 at the low end and 1 at the high one, clipped to that."""
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

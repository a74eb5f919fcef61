"""Draws memory in flight over the number of workers, from the file of `scripts/bench memory --rivals --json FILE`.

python -m benchmarks.processes.picture FILE docs/images/memory.svg
"""

import argparse
import json
import re
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

SHOWN = {"torch": ("torch DataLoader", "#b5480f"), "penstock.torch": ("penstock.torch DataLoader", "#0b6e8f")}
WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 56, 48
STEP_MB = 500


class Point(NamedTuple):
    """The MB in flight with a number of workers."""

    workers: int
    megabytes: float


def lines_of(results: list[dict[str, Any]]) -> dict[str, list[Point]]:
    """Return the points of each displayed loader, by the names of the contestants.

    Raises:
        ValueError: if the memory of one of them was not measured.
    """
    found: defaultdict[str, list[Point]] = defaultdict(list)
    for scenario in results:
        for contestant in scenario["contestants"]:
            name = re.fullmatch(r"(\d+) workers: (.+), in flight", contestant["name"])
            if name is not None and name[2] in SHOWN:
                found[name[2]].append(Point(int(name[1]), contestant["median"]["median"]))
    missing = [name for name in SHOWN if len(found[name]) < 2]
    if missing:
        raise ValueError(f"a line needs at least two widths; {', '.join(missing)} has fewer. Run memory with --rivals")
    return {name: sorted(found[name]) for name in SHOWN}


def drawn(lines: dict[str, list[Point]]) -> str:
    """Return the picture as SVG: a line for each loader, with its name and last value at its end."""
    widths = sorted({point.workers for points in lines.values() for point in points})
    highest = max(point.megabytes for points in lines.values() for point in points)
    top = STEP_MB * (int(highest / STEP_MB) + 1)

    def x(workers: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * widths.index(workers) / (len(widths) - 1)

    def y(megabytes: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * megabytes / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" role="img">',
        "<title>Shared memory of batches in flight over the number of workers</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 26, "Memory of batches in flight, MB, over the number of workers", size=16),
    ]
    for mark in range(0, top + 1, STEP_MB):
        parts.append(f'<line x1="{LEFT}" y1="{y(mark):.1f}" x2="{WIDTH - RIGHT}" y2="{y(mark):.1f}" stroke="#d8d8d8"/>')
        parts.append(_text(LEFT - 10, y(mark) + 4, f"{mark:,}", anchor="end"))
    parts += [_text(x(workers), HEIGHT - BOTTOM + 22, str(workers), anchor="middle") for workers in widths]
    for name, points in lines.items():
        label, colour = SHOWN[name]
        path = " ".join(f"{x(point.workers):.1f},{y(point.megabytes):.1f}" for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="3"/>')
        parts += [
            f'<circle cx="{x(point.workers):.1f}" cy="{y(point.megabytes):.1f}" r="4" fill="{colour}"/>'
            for point in points
        ]
        last = points[-1]
        parts.append(_text(x(last.workers) + 12, y(last.megabytes) - 2, f"{last.megabytes:,.0f} MB", colour=colour))
        parts.append(_text(x(last.workers) + 12, y(last.megabytes) + 14, label, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "#333333", size: int = 13) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}">{escape(words)}</text>'


def main() -> None:
    """Read a file of results and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    lines = lines_of(json.loads(given.results.read_text()))
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    given.picture.write_text(drawn(lines))


if __name__ == "__main__":
    main()

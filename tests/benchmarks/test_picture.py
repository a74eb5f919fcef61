"""The picture of memory over workers shows the measured values, and a missing loader is an error."""

from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.processes.picture import drawn, lines_of


def results(**measured: dict[int, float]) -> list[dict[str, Any]]:
    """Return results in the format of a run: megabytes by loader and number of workers, and rates."""
    contestants: list[dict[str, Any]] = []
    for loader, values in measured.items():
        name = loader.replace("_", ".")
        for workers, megabytes in values.items():
            contestants.append({"name": f"{workers} workers: {name}", "median": {"median": 40.0}})
            contestants.append({"name": f"{workers} workers: {name}, in flight", "median": {"median": megabytes}})
    return [{"contestants": contestants}]


def test_lines_show_the_values() -> None:
    """Each loader has one line with a point for each width, higher for more memory, and its last value as text."""
    found = lines_of(results(torch={2: 400.0, 16: 2544.0, 8: 1310.0}, penstock_torch={2: 231.0, 8: 231.0, 16: 385.0}))
    picture = ElementTree.fromstring(drawn(found))
    space = "{http://www.w3.org/2000/svg}"
    lines = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in picture.iter(f"{space}polyline")
    ]
    assert [len(line) for line in lines] == [3, 3]
    theirs, ours = lines
    assert [x for x, _ in theirs] == [x for x, _ in ours] == sorted(x for x, _ in theirs)
    assert all(lower > higher for (_, lower), (_, higher) in zip(ours, theirs, strict=True))  # SVG counts downwards
    assert ours[0][1] == ours[1][1] > ours[2][1]
    words = [text.text for text in picture.iter(f"{space}text")]
    assert {"2,544 MB", "385 MB", "torch DataLoader", "penstock.torch DataLoader"} < set(words)


def test_a_missing_loader_is_an_error() -> None:
    """Results without the other loader are an error."""
    with pytest.raises(ValueError, match=r"at least two widths; torch has fewer\. Run memory with --rivals"):
        lines_of(results(penstock_torch={2: 231.0, 8: 231.0}))

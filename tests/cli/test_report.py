"""The demo's report: one HTML file with all results, which needs no other file, and its pictures as PNG."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from penstock._cli.demo.digits import Evidence, Fed, digits_page, find_script, judge
from penstock._cli.demo.images import Round, images_page
from penstock._cli.demo.report import Axis, decode_picture, encode_png
from tests.cli.runs import KILLED_AT, NUM_STEPS, RESUMED_AT, make_evidence

image_module = pytest.importorskip("PIL.Image")

IMAGES = np.linspace(0, 1, 16 * 64, dtype=np.float32).reshape(16, 8, 8)


class Outline(HTMLParser):
    """Collects addresses, rows of tables and texts, and checks that every element is closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's beginning."""
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "data"}]
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Leave an element out that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        """Check that the innermost element ends."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.text += data
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1][-1] += data


def page(evidence: Evidence) -> str:
    """Return the digits' page, with a first batch of 16 grey squares."""
    return digits_page(evidence, judge(evidence), Fed(IMAGES, np.arange(16) % 10), find_script()).html()


def charts(evidence: Evidence) -> list[ElementTree.Element]:
    """Return the page's charts, parsed as XML, which is stricter than HTML."""
    html = page(evidence)
    return [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL)]


def test_the_page_holds_the_claims_the_fed_batch_and_the_script() -> None:
    """It needs nothing of the network; its pictures decode to the levels that were fed, rounded to 8 bits."""
    evidence = replace(make_evidence(), state_bytes=5000)
    html = page(evidence)
    parsed = Outline(html)
    claims = [["✓" if claim.holds else "✗", claim.name, claim.detail] for claim in judge(evidence)]
    assert parsed.rows[: len(claims)] == claims
    assert find_script().name == "digits.py"
    assert find_script().read_text(encoding="utf-8") in parsed.text
    assert not re.search(r"<script|<link|@import|url\(|https?://", html)
    for address, image in zip(parsed.addresses, IMAGES, strict=True):
        assert address.startswith("data:image/png;base64,")
        shown = image_module.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
        assert np.array_equal(np.asarray(shown), np.round(image * 255).astype(np.uint8))
    for changed, verdict in (
        (make_evidence(), "✓ All 9 claims hold"),
        (evidence, "✗ 1 of 9 claims does not hold"),
        (replace(evidence, recomputed={}), "✗ 2 of 9 claims do not hold"),
    ):
        assert verdict in page(changed)


def test_the_charts_show_both_runs() -> None:
    """Run B's points are upon run A's, unless a loss differs; its kill and its resumption are marked."""

    def points(evidence: Evidence) -> dict[str, set[str]]:
        lines = [line.attrib for line in charts(evidence)[0].iter("polyline")]
        return {line["class"].removeprefix("line "): set(line["points"].split()) for line in lines}

    evidence = make_evidence()
    drawn = points(evidence)
    lengths = {"straight": NUM_STEPS, "killed": KILLED_AT + 1, "resumed": NUM_STEPS - RESUMED_AT}
    assert {name: len(line) for name, line in drawn.items()} == lengths
    assert drawn["killed"] | drawn["resumed"] == drawn["straight"]
    last = replace(evidence.resumed.steps[-1], loss=(1.5).hex())
    other = points(replace(evidence, resumed=replace(evidence.resumed, steps=(*evidence.resumed.steps[:-1], last))))
    assert not other["resumed"] <= other["straight"]
    loss, near, throughput = ("".join(chart.itertext()) for chart in charts(evidence))
    for text in (loss, near):
        assert f"killed after step {KILLED_AT}" in text
        assert f"resumed at step {RESUMED_AT}" in text
    assert "killed" in throughput
    for axis in (Axis("loss", 0.0123, 2.31, is_logarithmic=True), Axis("step", 1, 690), Axis("x", 2, 2)):
        assert 1 <= len(axis.ticks()) <= 8
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks())


def test_texts_are_escaped() -> None:
    """A class folder's name cannot break the page."""
    name = '<b>"cats" & dogs</b>'
    pixels = np.zeros((4, 4, 3), np.uint8)
    html = images_page([Round(2.0, 1.0)], judge(make_evidence()), ([pixels], [name]), name).html()
    assert "<b>" not in html
    assert name in Outline(html).text


def test_pictures_are_encoded_and_decoded() -> None:
    """PNG loses nothing; grey, transparent and oblong pictures come out as squares of their own colour."""
    for shape in ((1, 1), (5, 7, 3)):
        pixels = (np.arange(np.prod(shape)) * 37 % 256).astype(np.uint8).reshape(shape)
        assert np.array_equal(np.asarray(image_module.open(io.BytesIO(encode_png(pixels)))), pixels)
    for mode, colour, expected in (
        ("L", 200, [200] * 3),
        ("RGBA", (9, 8, 7, 255), [9, 8, 7]),
        ("RGB", (1, 2, 3), [1, 2, 3]),
    ):
        file = io.BytesIO()
        image_module.new(mode, (31, 17), colour).save(file, "PNG")
        pixels = decode_picture(file.getvalue(), 16)
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels, np.broadcast_to(np.array(expected, np.uint8), (16, 16, 3)))

"""The report: one HTML file with all results, which needs no other file."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.cli.runs import (
    KILLED_AT,
    NUM_STEPS,
    RESUMED_AT,
    Axis,
    Evidence,
    Fed,
    Round,
    digits_page,
    find_script,
    images_page,
    judge,
    make_evidence,
)

image_module = pytest.importorskip("PIL.Image")

_VOID = {"meta", "img", "br"}


class Outline(HTMLParser):
    """Collects what the tests ask for, and checks that every element is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's beginning."""
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "data"}]
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        """Check that what ends is what began last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.text.append(data)
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1][-1] += data


def outline(html: str) -> Outline:
    """Return the parsed page, after checking that all that was opened was closed."""
    parser = Outline()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def page(evidence: Evidence) -> str:
    """Return the digits' page, with a first batch of 16 grey squares."""
    images = np.linspace(0, 1, 16 * 64, dtype=np.float32).reshape(16, 8, 8)
    return digits_page(evidence, judge(evidence), Fed(images, np.arange(16) % 10), find_script()).html()


def test_the_page_asks_nothing_of_the_network() -> None:
    """There is no script, every picture is inside, and no style or attribute names an address."""
    html = page(make_evidence())
    parsed = outline(html)
    assert parsed.addresses != []
    assert all(address.startswith("data:image/png;base64,") for address in parsed.addresses)
    assert not re.search(r"<script|<link|@import|url\(|https?://", html)


def test_the_claims_table_shows_every_claim() -> None:
    """The table has every claim, with its mark and its detail."""
    evidence = replace(make_evidence(), state_bytes=5000)
    rows = outline(page(evidence)).rows
    expected = [["✓" if claim.holds else "✗", claim.name, claim.detail] for claim in judge(evidence)]
    assert rows[: len(expected)] == expected
    assert [row[1] for row in expected if row[0] == "✗"] == ["state"]


def test_the_verdict_counts_failed_claims() -> None:
    """The head of the page says that all claims hold, or how many do not."""
    evidence = make_evidence()
    assert "✓ All 9 claims hold" in page(evidence)
    assert "✗ 1 of 9 claims does not hold" in page(replace(evidence, state_bytes=5000))
    assert "✗ 2 of 9 claims do not hold" in page(replace(evidence, state_bytes=5000, recomputed={}))


def test_the_grid_shows_the_batch_that_was_fed() -> None:
    """Each picture decodes to the levels that were fed, rounded to 8 bits."""
    images = np.linspace(0, 1, 16 * 64, dtype=np.float32).reshape(16, 8, 8)
    shown = [
        np.asarray(image_module.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))
        for address in outline(page(make_evidence())).addresses
    ]
    assert len(shown) == 16
    for pixels, image in zip(shown, images, strict=True):
        assert np.array_equal(pixels, np.round(image * 255).astype(np.uint8))


def charts(html: str) -> list[ElementTree.Element]:
    """Return the page's charts, parsed as XML, which is stricter than HTML."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL)]


def test_the_loss_curve_holds_every_step_of_every_run() -> None:
    """Run A has a point for each of its steps, and the two parts of run B for each of theirs."""
    (loss, *_) = charts(page(make_evidence()))
    lines = [line.attrib for line in loss.iter("polyline")]
    lengths = {line["class"]: len(line["points"].split()) for line in lines}
    expected = {"line straight": NUM_STEPS, "line killed": KILLED_AT + 1, "line resumed": NUM_STEPS - RESUMED_AT}
    assert lengths == expected


def test_equal_runs_are_drawn_upon_each_other() -> None:
    """Run B's points are run A's, and a loss that differs is drawn elsewhere."""

    def points(evidence: Evidence) -> dict[str, set[str]]:
        return {
            line.attrib["class"]: set(line.attrib["points"].split())
            for line in charts(page(evidence))[0].iter("polyline")
        }

    evidence = make_evidence()
    drawn = points(evidence)
    assert drawn["line killed"] | drawn["line resumed"] == drawn["line straight"]
    last = replace(evidence.resumed.steps[-1], loss=(1.5).hex())
    other = points(replace(evidence, resumed=replace(evidence.resumed, steps=(*evidence.resumed.steps[:-1], last))))
    assert not other["line resumed"] <= other["line straight"]


def test_kill_and_resumption_are_marked() -> None:
    """The charts of the loss and of the throughput say where run B was killed and went on."""
    loss, near, throughput = ("".join(chart.itertext()) for chart in charts(page(make_evidence())))
    for text in (loss, near):
        assert f"killed after step {KILLED_AT}" in text
        assert f"resumed at step {RESUMED_AT}" in text
    assert "killed" in throughput


def test_the_script_is_in_the_page_word_for_word() -> None:
    """The reader can copy the script from the report."""
    assert find_script().read_text(encoding="utf-8") in "".join(outline(page(make_evidence())).text)


def test_texts_are_escaped() -> None:
    """A class folder's name cannot break the page."""
    name = '<b>"cats" & dogs</b>'
    pixels = np.zeros((4, 4, 3), np.uint8)
    html = images_page([Round(2.0, 1.0)], judge(make_evidence()), ([pixels], [name]), name).html()
    assert "<b>" not in html
    assert name in "".join(outline(html).text)


@pytest.mark.parametrize(
    "axis", [Axis("loss", 0.0123, 2.31, is_logarithmic=True), Axis("step", 1, 690), Axis("x", 2, 2)]
)
def test_ticks_are_few_and_inside(axis: Axis) -> None:
    """An axis has ticks that can be read, from its low end to its high one."""
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(axis.low <= tick <= axis.high for tick in ticks)

"""The report as one self-contained HTML file, without scripts, fonts or links to other files."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from penstock._cli.demo.claims import Claim
from penstock._cli.demo.pictures import Pixels, as_data_address, encode_png
from penstock.errors import UsageError

_STYLE: Final = Path(__file__).with_name("page.css")
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
class Tile:
    """One figure in large type, with its unit and meaning."""

    figure: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of the page; `body` is HTML, the rest is text."""

    title: str
    explanation: str
    body: str


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the report.

    Attributes:
        title: the result, in a few words.
        lead: the experiment, in one or two sentences.
        tiles: the main figures.
        claims: the rows of the table; the verdict counts them.
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
        UsageError: its folder does not exist, or it is a folder itself.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--report must be a file in a folder that exists; got {str(path)!r}")


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

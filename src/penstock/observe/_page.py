"""Pages of HTML that need no other file and have no scripts; and the report as one, or as a fragment for notebooks."""

from collections.abc import Sequence
from typing import Final

from penstock._graph import escaped

_STYLE: Final = """\
.penstock { font: 14px/1.5 system-ui, sans-serif; max-width: 920px; }
.penstock table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.penstock td, .penstock th { padding: 4px 12px 4px 0; text-align: right; font-weight: 400; }
.penstock th { opacity: 0.65; }
.penstock :is(td, th):is(:first-child, :last-child) { text-align: left; }
.penstock tr + tr { border-top: 1px solid #8884; }
.penstock svg { display: block; width: 100%; height: 18px; margin: 12px 0; }
.penstock rect { fill: #3b6fc4; }
.penstock rect:nth-of-type(even) { fill: #8ab4f8; }
.penstock td:first-child { overflow-wrap: anywhere; }
.penstock p { margin: 4px 0; }
.penstock :is(td, th):last-child { padding-right: 0; }
@media (max-width: 560px) { .penstock { font-size: 12px; } .penstock :is(td, th) { padding-right: 7px; } }
"""
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
{content}
</body>
</html>
"""


def page(
    head: Sequence[str], rows: Sequence[tuple[str, ...]], shares: Sequence[tuple[str, float]], tail: Sequence[str]
) -> str:
    """Return the whole page.

    Args:
        head: the lines above the table.
        rows: the headings, and the cells of each step.
        shares: the text of each step, and its share of the time.
        tail: the lines below the table.
    """
    return whole_page("penstock report", fragment(head, rows, shares, tail))


def whole_page(title: str, content: str) -> str:
    """Return a page that needs no other file.

    Args:
        title: its title, as text.
        content: its content, as HTML.
    """
    return _PAGE.format(title=escaped(title), content=content)


def fragment(
    head: Sequence[str], rows: Sequence[tuple[str, ...]], shares: Sequence[tuple[str, float]], tail: Sequence[str]
) -> str:
    """Return the content of the page, for a notebook; the arguments are those of `page`."""
    headings, *cells = rows
    table = _row("th", headings) + "".join(_row("td", each) for each in cells)
    return (
        f'<style>{_STYLE}</style><div class="penstock">{_lines(head)}{_bar(shares)}<table>{table}</table>'
        f"{_lines(tail)}</div>"
    )


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escaped(line)}</p>" for line in lines)


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escaped(cell)}</{tag}>' for cell in cells)}</tr>"


def _bar(shares: Sequence[tuple[str, float]]) -> str:
    """Return a bar that shows the share of each step."""
    drawn, at = "", 0.0
    for text, share in shares:
        title = escaped(f"{text}: {share:.0%}")
        drawn += f'<rect x="{at:.2f}" y="0" width="{100 * share:.2f}" height="10"><title>{title}</title></rect>'
        at += 100 * share
    return f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="shares">{drawn}</svg>'

"""The links between Markdown files, and the headings that they name.

Run as a module, it prints each link of the checkout whose file or heading doesn't exist; `scripts/check` calls it.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.architecture.tree import files

LINK = re.compile(r"\]\((?!https?://|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)
SHOWN = re.compile(r"\[(?P<text>[^\]]*)\]\([^)]*\)")
MARKUP = re.compile(r"[^\w\s-]")


def lost_links(pages: Iterable[Path]) -> Iterator[str]:
    """Yield `page: link` for each link of the pages that leads nowhere."""
    for page in pages:
        for link in links(page):
            target = page.parent / link["path"] if link["path"] else page
            if not target.exists():
                yield f"{page}: no file {link['path']}"
            elif link["anchor"] and link["anchor"] not in anchors(target):
                yield f"{page}: no heading {link['path']}#{link['anchor']}"


def links(page: Path) -> Iterator[re.Match[str]]:
    """Yield a page's links to files and headings; text in code that looks like a link is none."""
    words = FENCED.sub("", page.read_text(encoding="utf-8"))
    yield from LINK.finditer(CODE.sub("code", words))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    seen: Counter[str] = Counter()
    made: set[str] = set()
    for heading in HEADING.finditer(FENCED.sub("", page.read_text(encoding="utf-8"))):
        anchor = MARKUP.sub("", SHOWN.sub(r"\g<text>", heading["text"]).lower()).strip().replace(" ", "-")
        made.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(made)


def main() -> int:
    """Print the lost links; return the exit status."""
    lost = list(lost_links(files(".md")))
    sys.stdout.writelines(f"{link}\n" for link in lost)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())

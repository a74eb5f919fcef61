"""The site of the documentation: Sphinx's settings, which `scripts/docs` builds with.

The pages are the Markdown files as they are read in the repository, so the site's root is the checkout and README.md
its first page. docs/README.md lists every page under headings; the same lists are the site's navigation.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs"}
HEADING = re.compile(r"^##+ (?P<caption>.*)$", re.MULTILINE)
LINK = re.compile(r"\]\((?P<page>[^)#:]+)\.md\)")

project = "Penstock"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [path.name for path in CHECKOUT.iterdir() if path.name not in PAGES]
myst_heading_anchors = 6  # the anchors that links name in the repository
suppress_warnings = ["misc.highlighting_failure"]  # a drawing in a block of Python is no error

html_theme = "furo"
html_title = project
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add to the first page a hidden table of contents for each heading of docs/README.md."""
    if page == root_doc:
        index = CHECKOUT / "docs" / "README.md"
        source[0] += "".join(_tables_of_contents(index.read_text(encoding="utf-8")))


def _tables_of_contents(index: str) -> Iterator[str]:
    yield _table([], ["README"])
    _, *parts = HEADING.split(index)
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        pages = LINK.findall(text)
        if pages:
            yield _table([f":caption: {caption}"], pages)


def _table(options: list[str], pages: list[str]) -> str:
    return "\n".join(["\n```{toctree}", ":hidden:", *options, "", *(f"/docs/{page}" for page in pages), "```\n"])


def copy_first_page(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to index.html, which servers show for a folder."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", copy_first_page)

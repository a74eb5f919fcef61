"""Every Python block of README.md and docs/ runs, or its fence gives the reason why not; and links have a target.

The blocks of a page are one program: a later block continues an earlier one. A block that can't run here opens with
```` ```python no-run: the reason ````. A block of any language that opens with ```` ```language file: name ```` is a
file, which is in the program's folder from the start, to be imported or compiled.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.links import links, lost_links
from tests.architecture.tree import CHECKOUT, files, name_of
from tests.images.photographs import need_jpeg

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>\S.*)?$")
SKIPPED = re.compile(r"python\s+no-run")
FILE = re.compile(r"\w+\s+file:\s*(?P<name>[\w.-]+)$")
EXPLAINED = re.compile(r"python\s+no-run:\s*\S+\s+\S+")
PAGES = {name_of(page): page for page in files(".md") if name_of(page).split("/")[0] in {"README.md", "docs"}}


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences.

    Attributes:
        info: the text of its first fence.
        number: the number of that fence's line, from 1.
        lines: the lines inside, without the fence's indent.
    """

    info: str
    number: int
    lines: list[str]


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page.

    Raises:
        ValueError: the last one isn't closed.
    """
    block: Block | None = None
    indent = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if block is None and fence is not None:
            block = Block(str(fence["info"] or ""), number, [])
            indent = len(fence["indent"])
        elif block is not None and fence is not None and fence["info"] is None:
            yield block
            block = None
        elif block is not None:
            block.lines.append(line[indent:])
    if block is not None:
        raise ValueError("the last block isn't closed")


def program_of(text: str) -> str:
    """Return the page's blocks as one program, each line at its number in the page.

    Raises:
        ValueError: a block is marked `no-run` without a reason, or isn't closed.
    """
    program = [""] * len(text.splitlines())
    for block in blocks_of(text):
        if SKIPPED.match(block.info) and not EXPLAINED.match(block.info):
            raise ValueError(f"line {block.number}: a block that doesn't run says why, as ```python no-run: the reason")
        if block.info.split() == ["python"]:
            program[block.number : block.number + len(block.lines)] = block.lines
    return "\n".join(program)


def files_of(text: str) -> dict[str, str]:
    """Return the contents of the files that a page shows, by name."""
    named = [(FILE.match(block.info), block) for block in blocks_of(text)]
    return {name["name"]: "\n".join([*block.lines, ""]) for name, block in named if name is not None}


def forget_modules(folder: Path) -> None:
    """Remove modules that were imported from a folder, since another page may have a module of that name."""
    for name, module in list(sys.modules.items()):
        if folder in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]


@pytest.mark.usefixtures("started_zarr")
@pytest.mark.parametrize("name", PAGES)
def test_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run, in a folder with its own files, with the names that the page itself imports."""
    text = PAGES[name].read_text()
    if "from penstock.images import" in text:
        need_jpeg()
    for file, content in files_of(text).items():
        (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    try:
        exec(compile(program_of(text), str(CHECKOUT / name), "exec"), {"__name__": "__main__"})
    finally:
        forget_modules(tmp_path)


def test_links_lead_somewhere() -> None:
    """Each link of the checkout's pages to a file or a heading names one that exists."""
    assert list(lost_links(files(".md"))) == []


def test_lost_links_are_found(tmp_path: Path) -> None:
    """A heading has the anchor that GitHub gives it; text in code is no link, and a heading in code no anchor."""
    page = tmp_path / "page.md"
    headings = ["# The `map(f)` [verb](page.md), again", "## Twice", "## Twice", "```text", "# none", "```"]
    anchors = ["the-mapf-verb-again", "twice-1", "none"]
    links = [*(f"[a](page.md#{anchor}) [b](#{anchor})" for anchor in anchors), "[c](gone.md)", "`[d](gone.py)`"]
    page.write_text("\n".join([*headings, *links]))
    lost = ["no heading page.md#none", "no heading #none", "no file gone.md"]
    assert list(lost_links([page])) == [f"{page}: {link}" for link in lost]


def test_every_page_is_in_the_navigation() -> None:
    """Every page is linked from docs/README.md, whose lists are the site's navigation."""
    index = PAGES["docs/README.md"]
    linked = {(index.parent / link["path"]).resolve() for link in links(index)}
    unlinked = [name for name, page in PAGES.items() if page.resolve() not in linked]
    assert unlinked == ["README.md", "docs/README.md"]


def test_blocks_keep_their_place() -> None:
    """The program has plain Python blocks only, at the line numbers that a traceback then shows."""
    page = "text\n```python\nvalue = 1\n```\n```console\n$ ls\n```\n1. listed\n   ```python\n   value += 1\n   ```\n"
    assert program_of(page).rstrip("\n").splitlines() == ["", "", "value = 1", "", "", "", "", "", "", "value += 1"]


def test_a_block_may_say_why_it_does_not_run() -> None:
    """A block with a reason isn't run; a missing reason is an error that names the line."""
    assert not program_of("```python no-run: needs eight ranks\nlaunch()\n```").strip()
    with pytest.raises(ValueError, match="line 1: a block that doesn't run says why"):
        program_of("```python no-run\nlaunch()\n```")


def test_an_open_block_is_an_error() -> None:
    """A page whose last block isn't closed is an error, since its end would not run."""
    with pytest.raises(ValueError, match="the last block isn't closed"):
        program_of("```python\nvalue = 1\n")


def test_a_block_may_be_a_file() -> None:
    """A block of any language may be a file; it isn't part of the program."""
    page = "```python file: one.py\nvalue = 1\n```\n```cpp file: two.cpp\nint two;\n```\n```cpp\nint none;\n```\n"
    assert files_of(page) == {"one.py": "value = 1\n", "two.cpp": "int two;\n"}
    assert not program_of(page).strip()

"""Every Python block of README.md and docs/ runs, or says on its fence why not; and links lead somewhere.

The blocks of a page are one program: a later one goes on where an earlier one stopped. A block that shows what
cannot run here opens with ```` ```python no-run: the reason ````.
"""

import re
from pathlib import Path

import pytest

from tests.architecture.tree import CHECKOUT, files, name_of

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>\S.*)?$")
SKIPPED = re.compile(r"python\s+no-run")
EXPLAINED = re.compile(r"python\s+no-run:\s*\S+\s+\S+")
LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#\s]+)(?:#[^)\s]*)?\)")
PAGES = {name_of(page): page for page in files(".md") if name_of(page).split("/")[0] in {"README.md", "docs"}}


def program_of(text: str) -> str:
    """Return the page's blocks as one program, each line at its number in the page.

    Raises:
        ValueError: a block is marked `no-run` without a reason, or isn't closed.
    """
    lines: list[str] = []
    info: str | None = None
    indent = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        kept = ""
        if info is None and fence is not None:
            info = str(fence["info"] or "")
            indent = len(fence["indent"])
            if SKIPPED.match(info) and not EXPLAINED.match(info):
                raise ValueError(f"line {number}: a block that doesn't run says why, as ```python no-run: the reason")
        elif fence is not None and fence["info"] is None:
            info = None
        elif info is not None and info.split() == ["python"]:
            kept = line[indent:]
        lines.append(kept)
    if info is not None:
        raise ValueError("the last block isn't closed")
    return "\n".join(lines)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page shows works, in an empty folder, with the names that the page itself imports."""
    program = program_of(PAGES[name].read_text())
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(CHECKOUT / name), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Each link to another file of the checkout names one that is there."""
    page = PAGES[name]
    lost = [link["path"] for link in LINK.finditer(page.read_text()) if not (page.parent / link["path"]).exists()]
    assert not lost


def test_every_page_is_in_an_index() -> None:
    """A reader who begins at docs/README.md finds every page."""
    indexes = [name for name in PAGES if name.endswith("README.md")]
    linked = {
        (PAGES[index].parent / link["path"]).resolve()
        for index in indexes
        for link in LINK.finditer(PAGES[index].read_text())
    }
    assert [name for name, page in PAGES.items() if name != "README.md" and page.resolve() not in linked] == []


def test_blocks_keep_their_place() -> None:
    """Only plain Python blocks are part of the program, at the line numbers that a traceback then names."""
    page = "text\n```python\nvalue = 1\n```\n```console\n$ ls\n```\n1. listed\n   ```python\n   value += 1\n   ```\n"
    assert program_of(page).rstrip("\n").splitlines() == ["", "", "value = 1", "", "", "", "", "", "", "value += 1"]


def test_a_block_may_say_why_it_does_not_run() -> None:
    """A block with a reason isn't run; one without is an error that names its line."""
    assert not program_of("```python no-run: needs eight ranks\nlaunch()\n```").strip()
    with pytest.raises(ValueError, match="line 1: a block that doesn't run says why"):
        program_of("```python no-run\nlaunch()\n```")


def test_an_open_block_is_an_error() -> None:
    """A page whose last block isn't closed is wrong, and its end would not run."""
    with pytest.raises(ValueError, match="the last block isn't closed"):
        program_of("```python\nvalue = 1\n")

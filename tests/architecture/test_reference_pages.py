"""The reference pages agree with the docstrings."""

import pytest

from tests.architecture.reference_pages import markdown, pages

DOCSTRING = """Return one thing.

More about it:

    position ──► key

Args:
    first: a number,
        or none.
    second, third: the rest.

Returns:
    A thing.

Example:
    >>> one()
    1
"""
MARKDOWN = """Return one thing.

More about it:

```text
position ──► key
```

**Args:**

- `first`: a number, or none.
- `second, third`: the rest.

**Returns:**

A thing.

```pycon
>>> one()
1
```"""


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """Return the pages as generated now."""
    return pages()


def test_sections_become_lists_and_examples_blocks() -> None:
    """Arguments become a list, drawings and examples become blocks, and running text stays unchanged."""
    assert markdown(DOCSTRING) == MARKDOWN


def test_signatures_are_those_of_the_source(written: dict[str, str]) -> None:
    """A verb's own instance is left out; defaults and annotations are those of the source."""
    assert "\n```text\nlimit(count: int) -> Dataset[T_co]\n```\n" in written["dataset.md"]
    assert "\n```text\nShard(rank: int, count: int, uneven: bool = False)\n```\n" in written["penstock.md"]
    assert 'remainder: Remainder = "keep",\n' in written["dataset.md"]


def test_every_verb_shows_its_use(written: dict[str, str]) -> None:
    """Each verb of a dataset has an example under its name; internal methods have none."""
    entries = written["dataset.md"].split("\n### ")[1:]
    silent = [entry.splitlines()[0] for entry in entries if "```pycon" not in entry]
    assert silent == ["penstock.Dataset.node"]


def test_the_index_names_each_page(written: dict[str, str]) -> None:
    """Every page can be reached from the index."""
    assert [name for name in written if name != "README.md" and f"({name})" not in written["README.md"]] == []

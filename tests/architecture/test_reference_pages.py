"""The reference pages say what the docstrings say."""

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
    """Return the pages as they would be written now."""
    return pages()


def test_sections_become_lists_and_examples_blocks() -> None:
    """Arguments are a list, what is drawn and what is shown are blocks, and running text stays as it is."""
    assert markdown(DOCSTRING) == MARKDOWN


def test_signatures_are_those_of_the_source(written: dict[str, str]) -> None:
    """A verb's own instance is left out; defaults and annotations stand as they were written."""
    assert "\n```text\nshuffle() -> Dataset[T_co]\n```\n" in written["dataset.md"]
    assert "\n```text\nShard(rank: int, count: int, uneven: bool = False)\n```\n" in written["penstock.md"]
    assert 'remainder: Remainder = "keep",\n' in written["dataset.md"]


def test_every_verb_shows_its_use(written: dict[str, str]) -> None:
    """Under the name of each verb of a dataset there is an example; what isn't for users has none."""
    entries = written["dataset.md"].split("\n### ")[1:]
    silent = [entry.splitlines()[0] for entry in entries if "```pycon" not in entry]
    assert silent == ["penstock.Dataset.node"]


def test_the_index_names_each_page(written: dict[str, str]) -> None:
    """From the index every page can be reached."""
    assert [name for name in written if name != "README.md" and f"({name})" not in written["README.md"]] == []

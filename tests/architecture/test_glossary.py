"""The glossary is in alphabetical order, defines each word once, and names modules and classes that exist."""

import re
from importlib import import_module

from tests.architecture.tree import CHECKOUT

ENTRY = re.compile(r"^- \*\*(?P<word>[^*]+)\*\*: (?P<text>.*(?:\n  .*)*)", re.MULTILINE)
NAME = re.compile(r"`(penstock(?:\.\w+)+)`")
ENTRIES = [entry.groups() for entry in ENTRY.finditer((CHECKOUT / "docs/explanation/glossary.md").read_text())]


def resolve(name: str) -> object:
    """Return the module, or the member of a module, of a dotted name.

    Raises:
        ImportError: if there is no such module.
        AttributeError: if the module has no such member.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, member = name.rpartition(".")
        return getattr(import_module(module), member)


def test_words_are_sorted_and_unique() -> None:
    """A reader finds a word by the alphabet, and it has one meaning."""
    words = [word for word, _ in ENTRIES]
    assert len(words) > 50
    assert words == sorted(set(words))


def test_homes_exist() -> None:
    """Each module or class that the glossary names exists."""
    names = {name for _, text in ENTRIES for name in NAME.findall(text)}
    assert all(resolve(name) is not None for name in names)

"""Changes of the public names are intended, and each name has an example."""

import inspect
from pathlib import Path

import pytest

from tests.architecture.public_names import COMMITTED, public_members, public_names, public_objects

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_public_names_are_the_committed_ones() -> None:
    """No public name appears or disappears without a change of the committed list."""
    committed = set(COMMITTED.read_text().split())
    found = set(public_names())
    assert found == committed, (
        f"new: {sorted(found - committed)}; gone: {sorted(committed - found)}. If that is meant: scripts/public-names"
    )


def test_public_names_have_docstrings() -> None:
    """Every public function, class, method and property has a docstring."""
    described = [each for name, value in public_objects() for each in ((name, value), *public_members(name, value))]
    silent = [name for name, value in described if _needs_docstring(value) and not inspect.getdoc(value)]
    assert not silent, f"without a docstring: {silent}"


def test_public_names_have_examples() -> None:
    """Every public function and class has an example; errors have theirs in the calls that raise them."""
    shown = [(name, value) for name, value in public_objects() if callable(value) and not _is_error(value)]
    silent = [name for name, value in shown if ">>> " not in (inspect.getdoc(value) or "")]
    assert not silent, f"without an example in the docstring: {silent}"


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference pages are not written yet")
def test_public_names_are_in_the_reference() -> None:
    """Every public name is in docs/reference."""
    pages = "\n".join(page.read_text() for page in sorted(REFERENCE.rglob("*.md")))
    missing = [name for name, _ in public_objects() if name not in pages]
    assert not missing, f"not in docs/reference: {missing}"


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _needs_docstring(value: object) -> bool:
    return (
        inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, property | classmethod | staticmethod)
    )

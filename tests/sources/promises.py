"""The promises of `SourceTests`, checked by one test."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.testing import BlockSourceTests, SourceTests


def check_source(
    make: Callable[[], object],
    expected: Sequence[Any],
    suite: type[SourceTests] = BlockSourceTests,
    columns: Sequence[str] = (),
) -> None:
    """Run all tests of a suite over the sources that a function makes of the same records."""
    for name in dir(suite):
        if name.startswith("test_"):
            checked: Any = suite()
            checked.expected, checked.make_source, checked.length_columns = expected, make, columns
            getattr(checked, name)()

"""Tests for extensions of Penstock: `SourceTests` checks a source that you wrote."""

from penstock.testing._source_tests import SourceTests as SourceTests

__all__ = ["SourceTests"]

"""Tests and tools for what is built on Penstock: `SourceTests` checks a source that you wrote."""

from penstock.testing._source_tests import SourceTests as SourceTests

__all__ = ["SourceTests"]

"""A long run of tests resumes where it was stopped."""

from pathlib import Path

import pytest

from tests.passed import recorded

TESTS = """
import os
import pytest
from hypothesis import given, settings, strategies

def test_passes():
    pass

@settings(max_examples=20)
@given(strategies.integers())
def test_property(number):
    pass

@pytest.mark.skip(reason="it is skipped")
def test_skipped():
    pass

@pytest.mark.parametrize("name", ["a\\tb"])
def test_with_a_tab(name):
    pass

def test_fails():
    assert "MENDED" in os.environ

@pytest.fixture
def leaks():
    yield
    assert "MENDED" in os.environ

def test_with_a_teardown_that_fails(leaks):
    pass
"""


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_tests_that_passed_are_left_out(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, processes: tuple[str, ...]
) -> None:
    """A second run has the tests that failed; a third one has none, and says so: something else may have failed."""
    path = pytester.path / "passed"
    monkeypatch.setenv("PASSED_TESTS", str(path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyfile(test_some=TESTS)
    arguments = ("-p", "tests.passed", "-p", "no:cacheprovider", "-p", "no:zarr", "-p", "no:anyio", *processes)
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=4, failed=1, errors=1, skipped=1)
    names = ["test_passes", "test_property", "test_skipped", "test_with_a_tab[a\\tb]"]
    assert sorted(recorded(path)) == [f"test_some.py::{name}" for name in names]
    passing, failing, invalid = recorded(path)["test_some.py::test_property"]
    assert passing >= 20
    assert failing == invalid == 0

    with path.open("a") as file:
        file.write("test_some.py::test_fails")  # a run that was killed may leave a part of a line
    monkeypatch.setenv("MENDED", "1")
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=2, deselected=0 if processes else 4)
    assert len(recorded(path)) == 6
    nothing = pytester.runpytest_subprocess(*arguments)
    nothing.assert_outcomes(deselected=0 if processes else 6)
    assert nothing.ret == pytest.ExitCode.NO_TESTS_COLLECTED

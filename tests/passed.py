"""A plugin of pytest by which a long run resumes: it leaves out tests that have passed, and records those that pass.

`-p tests.passed` loads it, and `PASSED_TESTS` names the file: a line for each test that has passed or was skipped, with
its name, and, of a property, the numbers of its passing, failing and invalid examples. A run that is killed loses only
the tests that it was at. The records must be of the same sources: `scripts/soak --resume` sees to that.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

import pytest

_BEFORE: Final = pytest.StashKey[frozenset[str]]()
_EXAMPLES: Final = re.compile(r"(\d+) passing(?: \w+ \w+)?, (\d+) failing(?: \w+ \w+)?, and (\d+) invalid")


def pytest_configure(config: pytest.Config) -> None:
    """Read which tests have passed, or get it from the process that distributes the tests."""
    received: dict[str, Any] | None = getattr(config, "workerinput", None)
    if received is not None:
        config.stash[_BEFORE] = frozenset(received["passed"])
        return
    path = Path(os.environ["PASSED_TESTS"])
    config.pluginmanager.register(_Recorder(path))
    config.stash[_BEFORE] = frozenset(recorded(path))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send a process of pytest-xdist the tests that had passed at the start: all processes must collect the same."""
    node.workerinput["passed"] = [*node.config.stash[_BEFORE]]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that have passed."""
    before = config.stash[_BEFORE]
    passed = [item for item in items if item.nodeid in before]
    if passed:
        items[:] = [item for item in items if item.nodeid not in before]
        config.hook.pytest_deselected(items=passed)


class _Recorder:
    """Records the tests that pass, in the process that reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: set[str] = set()
        if path.exists():  # a run that was killed may have left a part of a line
            path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test once it has passed, its teardown included."""
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            examples = _EXAMPLES.findall(getattr(report, "_hypothesis_stats", ""))
            sums = [str(sum(int(phase[kind]) for phase in examples)) for kind in range(3)] if examples else []
            with self._path.open("a") as file:
                file.write("\t".join([report.nodeid, *sums]) + "\n")


def recorded(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the tests in a file, and the numbers of their examples."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: tuple(map(int, counts)) for name, *counts in (line.split("\t") for line in lines)}

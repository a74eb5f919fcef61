"""The steps of `examples/elastic.py`, which trains on a number of processes that changes, as its tests read them."""

import fcntl
import importlib.util
import json
import math
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "elastic.py"
EPOCHS, STEPS = 2, 66
PATIENCE_SECONDS = 300.0


def loaded() -> Any:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("elastic_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Record:
    """The lines that a training writes: a pipe with little room, so that it is only a few steps ahead of the test.

    Args:
        path: of the pipe.
        logs: returns what explains a training that makes no steps.

    Attributes:
        lines: those that were read; a line is a step.
    """

    def __init__(self, path: Path, logs: Callable[[], str]) -> None:
        self.lines: list[dict[str, Any]] = []
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR)  # never at its end, though processes come and go
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 4096)
        self._unread = b""
        self._logs = logs

    def read(self, ranks: int, count: int = EPOCHS * STEPS) -> None:
        """Read lines until that number of processes took `count` steps, or the last step was taken."""
        while count and not (self.lines and self.lines[-1]["step"] == EPOCHS * STEPS):
            self.lines.append(json.loads(self._read_line()))
            count -= self.lines[-1]["ranks"] == ranks

    def _read_line(self) -> bytes:
        while b"\n" not in self._unread:
            if not select.select([self._pipe], [], [], PATIENCE_SECONDS)[0]:
                pytest.fail(f"no step in {PATIENCE_SECONDS} s after {self.lines[-1:]}:\n{self._logs()}")
            self._unread += os.read(self._pipe, 4096)
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._pipe)


def assert_elastic(lines: list[dict[str, Any]], steady: list[dict[str, Any]]) -> None:
    """Check a run on 4, 2 and 3 processes: each step has the rows of the dataset, and its loss in a `steady` run."""
    sizes = list(dict.fromkeys(line["ranks"] for line in lines))
    assert (sizes[0], sizes[-1], 2 in sizes) == (4, 3, True)
    rows = [batch["row"].tolist() for epoch in range(EPOCHS) for batch in loaded().describe().epoch(epoch)]
    assert [line["rows"] for line in steady] == rows
    assert {line["step"] for line in lines} == set(range(1, EPOCHS * STEPS + 1))
    losses: list[float] = [line["loss"] for line in steady]
    for line in lines:  # steps that no checkpoint holds are taken again
        assert line["rows"] == rows[line["step"] - 1]
        assert math.isclose(line["loss"], losses[int(line["step"]) - 1], rel_tol=1e-3, abs_tol=1e-6)

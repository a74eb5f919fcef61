"""Progress lines: on a terminal and in a notebook, for all work that may take long, and nowhere else."""

import io
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.sources import Files, JsonLines, Parquet
from tests.dataset.functions import is_odd

PATIENCE_SECONDS = 60.0


class Screen(io.StringIO):
    """A stand-in for stderr, which tells when a text that matches an expression is on it."""

    def __init__(self, awaited: str = "\0", *, is_terminal: bool = True) -> None:
        """Keep the expression and the value of `isatty`."""
        super().__init__()
        self.awaited = awaited
        self.is_terminal = is_terminal
        self.shown = threading.Event()

    def isatty(self) -> bool:
        """Return the given value."""
        return self.is_terminal

    def flush(self) -> None:
        """Set the event once the text is there."""
        if re.search(self.awaited, self.getvalue()):
            self.shown.set()


class Cell(Screen):
    """The stderr of a notebook, which is no terminal."""

    __module__ = "ipykernel.iostream"


def measure_lengths(folder: Path) -> None:
    """Measure 50 texts in groups of 20."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a" * n for n in range(50)]}), folder / "a.parquet", row_group_size=20)
    assert Parquet(folder / "a.parquet", cache=folder).lengths("text").tolist() == list(range(50))


WORK: dict[str, tuple[Callable[[Path], object], str]] = {
    "an index": (
        lambda folder: JsonLines(folder / "a.jsonl", cache=folder),
        "indexing lines: 100% of 0.00 GB (0.00 GB)\n",
    ),
    "switched off": (lambda folder: JsonLines(folder / "a.jsonl", cache=folder, progress=False), ""),
    "lengths": (measure_lengths, "lengths of text: 100% of 50 (50)\n"),
    "a filter": (
        lambda folder: ps.range(50).filter(is_odd, index=folder / "index"),
        "filter is_odd: 100% of 50 (50)\n",
    ),
    "a folder": (Files, "listing files: 1\n"),
    "shards": (
        lambda folder: ps.write(ps.range(50), folder / "out", "jsonl", shard_bytes=8, num_workers=0, part=(1, 4)),
        "writing: 100% of 12 (12)\n",
    ),
    "the shards of other parts": (
        lambda folder: [
            ps.write(
                ps.range(50), folder / "out", "jsonl", shard_bytes=8, num_workers=0, part=(1 - k, 2), progress=k > 0
            )
            for k in range(2)
        ],
        "computing checksums: 100% of 24 (24)\n",
    ),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("case", ["a terminal", "a notebook", "a file", "fast"])
def test_long_work_ends_with_its_whole_amount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, case: str
) -> None:
    """A person sees a line if the work takes more than half a second; a file and fast work get none."""
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(number)}\n" for number in range(50)))
    work, line = WORK[name]
    stderr = Cell(is_terminal=False) if case == "a notebook" else Screen(is_terminal=case != "a file")
    clock: Iterator[float] = iter(np.arange(0, 100, 0.0001 if case == "fast" else 0.6).tolist())
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        patched.setattr(time, "monotonic", lambda: next(clock))
        work(tmp_path)
    assert stderr.getvalue().rpartition("\r")[2] == (line if case in {"a terminal", "a notebook"} else "")


def test_the_line_moves_inside_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An element that takes long doesn't hide the elements that were written before it."""
    stderr, computed, waited = Screen(r"writing: +[1-9]\d*% of 8"), set[int](), list[bool]()

    def waits(number: int) -> NDArray[np.uint16]:
        if number == 7 and number in computed:  # the first time, it is measured
            waited.append(stderr.shown.wait(PATIENCE_SECONDS))
        computed.add(number)
        return np.full(1 << 19, number, np.uint16)  # a megabyte

    monkeypatch.setattr(sys, "stderr", stderr)
    written = ps.write(ps.range(8).map(waits), tmp_path, "tokens", num_workers=1, workers="threads")
    assert (written.shards, written.complete, waited) == (1, True, [True])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".bin", ".idx", ".json", ".json"]

"""`penstock bench` compares the kinds of workers for a dataset, data that costs nothing, and torch's loader."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock._cli.bench import Row, advice, fastest, table
from penstock._cli.bench.measuring import Measured
from tests.cli.command import main

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the folder /proc")
HERE = __name__


def work(number: int) -> dict[str, int]:
    """Return an element that takes a while to compute."""
    return {"number": number, "sum": sum(range(20_000))}


def fail(number: int) -> int:
    """Raise an exception of two lines."""
    raise ValueError("it is damaged\n" + str(number))


train = ps.range(64, seed=7).shuffle().map(work).batch(4)
failing = ps.range(64).map(fail).batch(4)
empty = ps.range(0).batch(4)


def own() -> list[int]:
    """Return what is iterated like a loader."""
    return [1, 2, 3]


def measured(name: str, path: Path, *arguments: str) -> dict[str, Any]:
    """Return the result of a measurement of one way."""
    command = ["bench", f"{HERE}:{name}", "--num-workers", "2", "--seconds", "0.05", *arguments]
    assert main([*command, "--result", str(path / "result.json")]) == 0
    found: dict[str, Any] = json.loads((path / "result.json").read_text())
    return found


def test_each_way_is_measured(tmp_path: Path) -> None:
    """Batches are counted over the ends of epochs; loaders of Penstock have the verdict of their report."""
    for way in ("inline", "threads", "free data", "beside"):
        longer = ["--seconds", "0.5"] if way == "inline" else []  # processor time has ticks of 10 ms
        found = measured("train", tmp_path, "--one", way, "--beside", f"{HERE}:own", "--step-ms", "2", *longer)
        assert found["batches"] >= 2
        assert found["seconds"] >= 0.05
        assert 0 <= found["waited_seconds"] < found["seconds"]
        assert found["memory_bytes"] > 1e6
        assert bool(found["bottleneck"] and found["advice"]) == (way != "beside")
        if way == "inline":
            assert found["cpu_seconds"] > 0
            # On a busy machine, another step may be interrupted for longer than this one takes.
            again = (measured("train", tmp_path, "--one", way, *longer)["bottleneck"] for _ in range(2))
            assert found["bottleneck"] == "work" or "work" in again
    assert measured("failing", tmp_path, "--one", "inline") == {"error": "ValueError: it is damaged (in step 'fail')"}
    assert "there is no batch to measure" in measured("empty", tmp_path, "--one", "inline")["error"]


DATA = """
import penstock as ps
print("imported")
def work(number):
    return {"number": number, "sum": sum(range(20_000))}
in_order = ps.range(64).filter(bool).map(work).batch(4)
"""


def test_the_command_measures_all_ways_each_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """A way that a dataset doesn't allow has an error in its line; the others are measured. The module may print."""
    (tmp_path / "data_to_bench.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["bench", "data_to_bench:in_order", "--num-workers", "1", "--seconds", "0.05", "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("imported\n{")
    found: dict[str, Any] = json.loads(printed.removeprefix("imported"))
    assert list(found)[:4] == ["inline", "threads", "processes", "free data"]
    assert all(found[way]["batches_per_second"] > 0 for way in list(found)[:4])
    if "torch" in found:
        assert found["torch"] == {"error": "torch's loader needs positions, and the dataset is read in order"}


def test_the_table_fits_the_terminal() -> None:
    """A narrow terminal gets fewer columns; of ways that are about as fast, the first is the fastest.

    Advice that the table refutes isn't given: loaders that are slower than one without workers, whatever it predicts.
    """
    rows: dict[Any, Row] = {way: Row(way, 8) for way in ("inline", "threads", "processes", "torch")}
    for way, batches in (("inline", 10), ("threads", 400), ("processes", 410)):
        rows[way].found = Measured(batches, 10.0, 0.5, 7.5, 4.0, 1_500_000_000, "work", "more of it")
    rows["torch"].error = "the dataset is read in order, which torch's loader can't do"
    assert table(rows.values(), 80, waits=True) == [
        "                  batches/s  ms a batch  CPU ms   memory  waits",
        "inline                  1.0       1,000     400  1.50 GB    75%",
        "8 threads              40.0        25.0    10.0  1.50 GB    75%",
        "8 processes            41.0        24.4    9.76  1.50 GB    75%",
        "torch, 8 workers  the dataset is read in order, which torch's loader can't do",
    ]
    assert table(rows.values(), 40, waits=True)[1::3] == [
        "inline                  1.0       1,000",
        "torch, 8 workers  the dataset is read i…",
    ]
    assert fastest(rows) is rows["threads"]
    rows["threads"].found = None
    refuted = "nothing: no gain was measured with 8 processes"
    assert advice("compute ahead, with num_workers=4: up to 1.3x", rows) == refuted
    assert advice('pass workers="processes": up to 1.3x', rows) == refuted
    assert advice("make 'work' cheaper: up to 3.0x", rows) == "make 'work' cheaper: up to 3.0x"

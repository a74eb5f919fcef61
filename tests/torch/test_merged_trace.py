"""`penstock trace merge` puts a loader's trace and that of torch.profiler into one file, on one clock."""

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock as ps
from tests.cli.command import main

Output = pytest.CaptureFixture[str]
SECONDS = 0.003
SLACK = 1000.0  # microseconds that two readings of the clocks may be apart


def wait(number: int) -> int:
    """Return the number after a while."""
    threading.Event().wait(SECONDS)
    return number


def test_steps_and_waits_take_turns_on_one_clock(tmp_path: Path, capsys: Output) -> None:
    """Each step that the profiler saw is between two waits that the loader saw; the process has both names."""
    ours, theirs, both = (tmp_path / name for name in ("ours.json.gz", "torch.json", "both.json.gz"))
    with ps.Loader(ps.range(24).map(wait).batch(2)) as loader:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in loader:
                with torch.profiler.record_function("one step"):
                    threading.Event().wait(SECONDS)
        loader.trace(ours)
    profile.export_chrome_trace(str(theirs))
    assert main(["trace", "merge", str(ours), str(theirs), "-o", str(both)]) == 0
    assert " events\n" in capsys.readouterr().out
    merged: dict[str, Any] = json.loads(gzip.decompress(both.read_bytes()))
    events = [each for each in merged["traceEvents"] if each.get("ph") == "X"]
    steps = [each for each in events if each["name"] == "one step"]
    waits = [each for each in events if each.get("cat") == "wait"]
    assert len(steps) == 12
    assert len(waits) >= 12
    for step in steps:
        middle = step["ts"] + step["dur"] / 2
        inside = [each for each in waits if each["ts"] + SLACK < middle < each["ts"] + each["dur"] - SLACK]
        assert inside == []
    turns = sorted([*steps, *waits], key=lambda each: float(each["ts"]))
    assert [each["name"] == "one step" for each in turns[:24]] == [False, True] * 12
    names = [each["args"]["name"] for each in merged["traceEvents"] if each["name"] == "process_name"]
    assert len([name for name in names if "penstock: " in name]) == 1


def test_files_that_are_no_traces_are_refused(tmp_path: Path, capsys: Output) -> None:
    """The message names the file, and how to write one; a wall clock's times need no base."""
    old = {"traceEvents": [{"ph": "X", "name": "a", "ts": 1.7e15, "dur": 1.0}]}
    contents = {
        "old": json.dumps(old),
        "ours": json.dumps({**old, "baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": [
            {"ph": "X", "name": "b", "ts": 5.0, "dur": 1.0}]}),
        "text": "none",
        "list": "[1]",
        "unknown": json.dumps({"traceEvents": [{"ph": "X", "name": "a", "ts": 3.5, "dur": 1.0}]}),
        "cut": "",
    }  # fmt: skip
    contents["deep"] = "[" * 100_000
    contents["base"] = json.dumps({**old, "baseTimeNanoseconds": "x"})
    wrong: list[Any] = [7, {"pid": []}, {"ts": "5"}, {"dur": float("nan")}, {"ph": "M", "name": "process_name"}]
    contents |= {f"event {number}": json.dumps({"traceEvents": [{}, each]}) for number, each in enumerate(wrong)}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cut").write_bytes(gzip.compress(b"{}" * 1000)[:20])
    out = tmp_path / "out"
    for name, message in (
        ("text", "it has no whole JSON"),
        ("cut", "it has no whole JSON"),
        ("list", "it has no list traceEvents. Write one with loader.trace(path)"),
        ("unknown", "doesn't say when its time 0 is"),
        ("none", "can't be read: No such file"),
        ("deep", "it has no whole JSON"),
        ("base", "baseTimeNanoseconds must be a number of nanoseconds; got 'x'"),
        ("event 0", "event 1 of traceEvents must be an object"),
        ("event 1", "event 1 of traceEvents must have a number or a text as pid, and has []"),
        ("event 2", "event 1 of traceEvents must have a number of microseconds as ts, and has '5'"),
        ("event 3", "event 1 of traceEvents must have a number of microseconds as dur, and has nan"),
        ("event 4", "event 1 of traceEvents names a process, so it must have a name in args, and has None"),
    ):
        assert main(["trace", "merge", str(tmp_path / "ours"), str(tmp_path / name), "-o", str(out)]) == 2
        assert f"{tmp_path / name}" in (error := capsys.readouterr().err)
        assert message in error
    assert not out.exists()
    assert main(["trace", "merge", str(tmp_path / "ours"), str(tmp_path / "old"), "-o", str(out)]) == 0
    assert [each["ts"] for each in json.loads(out.read_text())["traceEvents"]] == [5.0, 0.0]

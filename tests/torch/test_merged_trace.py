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


SPAN = {"ph": "X", "name": "a", "ts": 1.7e15, "dur": 1.0}


def trace(*events: Any, **given: Any) -> bytes:
    """Return the content of a trace."""
    return json.dumps({"traceEvents": events, **given}).encode()


WRONG: list[tuple[bytes, str]] = [
    (b"none", "it has no whole JSON"),
    (gzip.compress(b"{}" * 1000)[:20], "it has no whole JSON"),
    (b"[" * 100_000, "it has no whole JSON"),
    (b"[1]", "it has no list traceEvents. Write one with loader.trace(path)"),
    (trace({**SPAN, "ts": 3.5}), "doesn't say when its time 0 is"),
    (trace(SPAN, baseTimeNanoseconds="x"), "baseTimeNanoseconds must be a number of nanoseconds; got 'x'"),
    (trace({}, 7), "event 1 of traceEvents must be an object"),
    (trace({}, {"pid": []}), "event 1 of traceEvents must have a number or a text as pid, and has []"),
    (trace({}, {"ts": "5"}), "event 1 of traceEvents must have a number of microseconds as ts, and has '5'"),
    (trace({}, {"dur": float("nan")}), "event 1 of traceEvents must have a number of microseconds as dur, and has nan"),
    (
        trace({}, {"ph": "M", "name": "process_name"}),
        "event 1 of traceEvents names a process, so it must have a name in args, and has None",
    ),
]


def test_files_that_are_no_traces_are_refused(tmp_path: Path, capsys: Output) -> None:
    """The message names the file, and how to write one; a wall clock's times need no base."""
    ours, out, missing, wrong = (tmp_path / name for name in ("ours", "out", "missing", "wrong"))
    ours.write_bytes(trace({**SPAN, "ts": 5.0}, baseTimeNanoseconds=1_700_000_000_000_000_000))
    for content, message in WRONG:
        wrong.write_bytes(content)
        assert main(["trace", "merge", str(ours), str(wrong), "-o", str(out)]) == 2
        assert str(wrong) in (error := capsys.readouterr().err)
        assert message in error
    assert main(["trace", "merge", str(ours), str(missing), "-o", str(out)]) == 2
    assert f"{missing} can't be read: No such file" in capsys.readouterr().err
    assert not out.exists()
    wrong.write_bytes(trace(SPAN))
    assert main(["trace", "merge", str(ours), str(wrong), "-o", str(out)]) == 0
    assert [each["ts"] for each in json.loads(out.read_text())["traceEvents"]] == [5.0, 0.0]

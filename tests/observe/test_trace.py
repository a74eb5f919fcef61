"""`Loader.trace` writes the last seconds of a loader's threads and processes for trace viewers."""

import gzip
import json
import os
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock._readings import KEPT_LAPS, NOTED_SECONDS, Readings
from tests.cli.command import main
from tests.places import in_places

SECONDS = 0.002


def wait(number: int) -> int:
    """Return the number after a while."""
    threading.Event().wait(SECONDS)
    return number


@in_places("inline", "processes")
def test_a_trace_has_each_steps_intervals_and_the_waits(place: dict[str, Any], tmp_path: Path) -> None:
    """Each track has intervals that don't overlap, within the run; together they are the time that the step took."""
    began = time.time_ns()
    with ps.Loader(ps.range(96, seed=1).shuffle().map(wait).batch(8), **place) as loader:
        for _ in loader:
            threading.Event().wait(SECONDS)
        loader.trace(tmp_path / "trace.json.gz")
        report = loader.report()
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    tracks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[names[event["tid"]]].append(event)
    for events in tracks.values():
        events.sort(key=lambda event: float(event["ts"]))
        assert all(one["ts"] + one["dur"] <= two["ts"] + 0.01 for one, two in pairwise(events))
        assert all(event["dur"] >= 0 for event in events)
        assert trace["baseTimeNanoseconds"] + 1e3 * events[0]["ts"] > began - 1e8
        assert trace["baseTimeNanoseconds"] + 1e3 * (events[-1]["ts"] + events[-1]["dur"]) < time.time_ns() + 1e8
    waits = [event for event in tracks["training"] if event["cat"] == "wait"]
    assert sum(event["dur"] for event in waits) == pytest.approx(1e6 * sum(dict(report.waits).values()), rel=0.01)
    steps = [event for name, events in tracks.items() if name != "training" for event in events]
    decoding = sum(event["dur"] for event in steps if event["name"] == "map(wait)")
    expected = next(step.seconds for step in report.steps if step.name == "wait") * report.batches
    assert decoding == pytest.approx(1e6 * expected, rel=0.05)


def test_merged_traces_of_equal_process_numbers_share_no_track(tmp_path: Path) -> None:
    """Two loaders of a process, or ranks in containers, get a process each, whose name says dataset, rank and file."""
    merged, rank, whole = (str(tmp_path / name) for name in ("merged", "rank", "whole"))
    for path, shard in ((whole, None), (rank, ps.Shard(1, 2))):
        with ps.Loader(ps.range(4).map(wait).batch(2), shard=shard) as loader:
            assert len(list(loader)) == 2
            loader.trace(path)
    assert main(["trace", "merge", whole, rank, "-o", merged]) == 0
    events = json.loads(Path(merged).read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    chain = "read(Range(0, 4, 1)).map(wait).batch(2)"
    assert list(names.values()) == [
        f"penstock: {chain}",
        f"penstock rank 1 of 2: {chain} (process {os.getpid()} of {rank})",
    ]
    for pid, path in zip(names, (whole, rank), strict=True):
        own = json.loads(Path(path).read_text())["traceEvents"]
        assert len([event for event in events if event["pid"] == pid]) == len(own)


def test_the_last_intervals_of_a_long_run_are_kept() -> None:
    """Of a thread that ran for long, some thousands of intervals are kept, in order, up to the last one."""
    step = object()
    readings = Readings([step])
    times, end = readings.times("worker 0"), 0.0
    for _ in range(KEPT_LAPS + 100):
        times.resume()
        end = time.perf_counter() + 2 * NOTED_SECONDS
        while time.perf_counter() < end:
            pass
        times.lap(step, 1)
    times.lap(step, 1)  # too short to be kept
    ((role, spans),) = readings.spans()
    ends = [span[1] for span in spans]
    assert role == "worker 0"
    assert 0.9 * KEPT_LAPS < len(ends) <= KEPT_LAPS
    assert ends == sorted(ends)
    assert end <= ends[-1] <= time.perf_counter()
    assert {span[0] for span in spans} == {0}

"""The trace of a loader's last seconds, in the JSON of Chrome's trace viewer, as Perfetto and torch.profiler have it.

Each thread or process that computes has a track of the dataset's steps, and the training has one of its waits and of
the time between them. A step's time is exclusive: the time of the steps below it, in between, isn't its own. A track
has one interval for each step and block, which ends where the step ended; its start is moved to the end of the interval
before it, where that is later. So intervals don't overlap, as the format requires.

A process of a pool has a track of the work that it has sent. Clocks of hosts differ, so an interval ends when the
result was here, and is as long as the process has measured.
"""

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from penstock._graph import chain_text, walk
from penstock._plan import Plan
from penstock._readings import MAX_STEPS, Readings
from penstock.observe._measured import OTHER_STEPS, step_text
from penstock.observe._merged_traces import write_json
from penstock.observe._report import CAUSE_TEXTS

_FIRST_TRACK: Final = 1_000_000  # above the numbers of threads that a profiler's trace has
_MICRO: Final = 1e6
_NANO: Final = 1e9


def write_trace(plan: Plan, readings: Readings, path: str | Path) -> None:
    """Write the trace of a loader.

    Args:
        plan: of the loader.
        readings: of the loader.
        path: of the file; with gzip if it ends in ".gz".

    Raises:
        OSError: the file can't be written.
    """
    events = list(_events(plan, readings))
    begin = min((event["ts"] for event in events if "ts" in event), default=0.0)
    base_ns = round((begin + time.time() - time.perf_counter()) * _NANO)
    for event in events:
        if "ts" in event:
            event["ts"] = round((event["ts"] - begin) * _MICRO, 3)
            event["dur"] = round(event["dur"] * _MICRO, 3)
    content = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    write_json(content, path)


def _events(plan: Plan, readings: Readings) -> Iterator[dict[str, Any]]:
    """Yield the events, with times in seconds."""
    shard = plan.shard
    rank = f" rank {shard.rank} of {shard.count}" if shard.count > 1 else ""
    yield _name("process_name", 0, f"penstock{rank}: {chain_text(plan.node)}")
    yield _name("thread_name", _FIRST_TRACK, "training")
    yield from _of_training(readings)
    names: dict[int, str] = {}
    for node in walk(plan.node):
        if (number := readings.numbers[id(node)]) < MAX_STEPS:  # the others share one number
            names.setdefault(number, step_text(node))
    tracks: list[tuple[str, list[tuple[str, str, float, float]]]] = []
    for role, spans in readings.spans():
        laps = [(names.get(number, OTHER_STEPS), "step", end, seconds) for number, end, seconds in spans]
        tracks.append((role, laps))
    for process, answers in readings.answers():
        tracks.append((process, [(each.text, "work", each.end, each.seconds) for each in answers]))
    for track, (role, intervals) in enumerate(tracks, _FIRST_TRACK + 1):
        if intervals:
            yield _name("thread_name", track, role)
        before = 0.0
        for name, category, end, seconds in intervals:
            yield _interval(track, name, category, max(end - seconds, before), end)
            before = max(end, before)


def _of_training(readings: Readings) -> Iterator[dict[str, Any]]:
    waits = readings.waits.latest()
    for end, seconds, cause in waits:
        yield _interval(_FIRST_TRACK, f"wait: {CAUSE_TEXTS[cause]}", "wait", end - seconds, end)
    for (end, _, _), (next_end, seconds, _) in pairwise(waits):
        yield _interval(_FIRST_TRACK, "training", "training", end, next_end - seconds)


def _interval(track: int, name: str, category: str, start: float, end: float) -> dict[str, Any]:
    times = {"ts": start, "dur": max(end - start, 0.0)}
    return {"ph": "X", "name": name, "cat": category, "pid": os.getpid(), "tid": track, **times}


def _name(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": os.getpid(), "tid": track, "args": {"name": name}}

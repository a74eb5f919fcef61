"""Several traces in Chrome's format as one, on one clock: a loader's, and that of torch.profiler.

Both say at which time of the wall clock their zero is, as `baseTimeNanoseconds`; older versions of torch count from the
epoch of the wall clock, and don't say it. All times are moved to the zero of the first trace.

Viewers find a track by the number of its process and that of its thread. Two loaders of one process have equal ones,
and so have ranks in containers, each of which may be process 1. Intervals of both on one track would overlap. So a
process whose tracks are in an earlier trace gets a number that no trace has, and its name says the one that it had.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from penstock.errors import UsageError

_BASE: Final = "baseTimeNanoseconds"
_NANOSECONDS: Final = 1000  # in a microsecond, the unit of times
_LEAST_WALL: Final = 1e15  # microseconds since 1970, up to 2001: smaller times aren't those of a wall clock
_LARGEST: Final = 1e19  # nanoseconds since 1970: a date after 2200
_DIGITS: Final = 3  # of microseconds


def merge_traces(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return the traces of some files as one, with all else that they have.

    Args:
        paths: of the files, at least one, which may be compressed by gzip.

    Raises:
        UsageError: a file can't be read, is no trace, or doesn't say when its zero is.
    """
    traces = [_content(Path(path)) for path in paths]
    bases = [_base(path, trace) for path, trace in zip(paths, traces, strict=True)]
    events: list[dict[str, Any]] = []
    tracks: set[tuple[object, object]] = set()
    pids = [event.get("pid") for trace in traces for event in trace["traceEvents"]]
    unused = itertools.count(1 + max((pid for pid in pids if isinstance(pid, int)), default=0))
    for path, trace, base in zip(paths, traces, bases, strict=True):
        own = dict.fromkeys((event["pid"], event.get("tid")) for event in trace["traceEvents"] if _is_on_track(event))
        renumbered = {pid: next(unused) for pid in dict.fromkeys(track[0] for track in own if track in tracks)}
        tracks.update(own)
        microseconds = (base - bases[0]) / _NANOSECONDS
        events += [_moved(_apart(event, renumbered, path), microseconds) for event in trace["traceEvents"]]
    rest = {key: value for trace in reversed(traces) for key, value in trace.items()}
    return {**rest, _BASE: bases[0], "traceEvents": [*_process_names(events), *_others(events)]}


def write_json(content: dict[str, Any], path: str | Path) -> None:
    """Write a trace; with gzip if the path ends in ".gz".

    Raises:
        OSError: the file can't be written.
    """
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    Path(path).write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def _content(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        content: object = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise UsageError(f"{path} is no trace: it has no whole JSON ({error})") from error
    found = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if not isinstance(found.get("traceEvents"), list):
        raise UsageError(
            f"{path} is no trace: it has no list traceEvents. Write one with loader.trace(path), or with the method "
            "export_chrome_trace of a profiler of torch"
        )
    for number, event in enumerate(found["traceEvents"]):
        problem = _problem(event)
        if problem:
            raise UsageError(f"{path} is no trace: event {number:,} of traceEvents {problem}")
    return found


def _problem(event: object) -> str:
    """Return why an entry of a trace is no event; "" for an event."""
    if not isinstance(event, dict):
        return "must be an object"
    known = cast("dict[str, Any]", event)
    for key in ("pid", "tid"):
        if not isinstance(known.get(key), int | str | None):
            return f"must have a number or a text as {key}, and has {known[key]!r}"
    for key in ("ts", "dur"):
        if not _is_number(known.get(key, 0)):
            return f"must have a number of microseconds as {key}, and has {known[key]!r}"
    arguments: object = known.get("args")
    if _is_process_name(known) and not (isinstance(arguments, dict) and "name" in arguments):
        return f"names a process, so it must have a name in args, and has {arguments!r}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < _LARGEST  # NaN is not


def _base(path: str | Path, trace: dict[str, Any]) -> int:
    """Return the wall clock's time, in nanoseconds, at which a trace's times are 0.

    Raises:
        UsageError: the trace doesn't say it.
    """
    if _BASE in trace:
        if not _is_number(trace[_BASE]):
            raise UsageError(f"{path} is no trace: {_BASE} must be a number of nanoseconds; got {trace[_BASE]!r}")
        return int(trace[_BASE])
    first = min((event["ts"] for event in trace["traceEvents"] if event.get("ts")), default=_LEAST_WALL)
    if first < _LEAST_WALL:
        raise UsageError(
            f"{path} doesn't say when its time 0 is: it has no {_BASE}, and its times are no wall clock's. Write it "
            "with torch.profiler of torch 2.4 or later"
        )
    return 0


def _is_on_track(event: dict[str, Any]) -> bool:
    return event.get("ph") != "M" and event.get("pid") is not None


def _apart(event: dict[str, Any], renumbered: dict[object, int], path: str | Path) -> dict[str, Any]:
    """Return an event with the new number of its process, if it has one."""
    pid = event.get("pid")
    if pid not in renumbered:
        return event
    moved = {**event, "pid": renumbered[pid]}
    if _is_process_name(event):
        moved["args"] = {**event["args"], "name": f"{event['args']['name']} (process {pid} of {path})"}
    return moved


def _moved(event: dict[str, Any], microseconds: float) -> dict[str, Any]:
    if "ts" not in event or not microseconds:
        return event
    return {**event, "ts": round(float(event["ts"]) + microseconds, _DIGITS)}


def _is_process_name(event: dict[str, Any]) -> bool:
    return event.get("ph") == "M" and event.get("name") == "process_name"


def _process_names(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one name of each process: viewers show the last one, and several traces may have the same process."""
    names: dict[object, list[str]] = {}
    for event in filter(_is_process_name, events):
        listed = names.setdefault(event.get("pid"), [])
        listed += [name for name in [str(event["args"]["name"])] if name not in listed]
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": ", ".join(listed)}}
        for pid, listed in names.items()
    ]


def _others(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if not _is_process_name(event)]

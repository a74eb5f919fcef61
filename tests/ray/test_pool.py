"""A loader whose batches processes of a Ray cluster compute has the batches and the state of any other loader."""

import asyncio
import importlib
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import penstock as ps
from penstock.errors import ClosedError, GraphError, UsageError, WorkerError
from penstock.testing import assert_same

ray: Any = pytest.importorskip("ray")
door: Any = importlib.import_module("penstock.ray")


@pytest.fixture(scope="module")
def pool() -> Generator[Any]:
    """Two processes, on two hosts."""
    with door.Pool(2) as pool:
        yield pool


def element(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return an element of several kinds of leaves."""
    return {
        "noise": rng.random(3),
        "text": f"number {number}",
        "when": np.datetime64(number, "s"),
        "big": np.full(30_000, number, ">u2"),
    }


def described() -> ps.Dataset[Any]:
    """Return a dataset of random elements in batches, with a step above them."""
    made = ps.range(200, seed=7).shuffle().random_map(element).batch(8, remainder="keep")
    return made.map(lambda batch: batch | {"sum": batch["noise"].sum()})


def test_the_example_runs(tmp_path: Path) -> None:
    """The example of the docstring prints what it says, on a cluster of its own: Ray prints what others have lost."""
    code = "import doctest, penstock.ray._pool as module; raise SystemExit(doctest.testmod(module).failed)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": "local"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def test_batches_and_states_are_those_of_any_loader(pool: Any) -> None:
    """Two epochs are equal byte for byte; a state of either loader continues in the other, also on other ranks."""
    expected = ps.Loader(described())
    with ps.Loader(described(), workers=pool) as loader:
        for _ in range(2):
            for found, wanted in zip(loader, expected, strict=True):
                assert_same(found, wanted)
                assert found["big"].flags.writeable
        assert "2 processes of a Ray cluster" in repr(loader)
        batches = iter(loader)
        _ = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        rest = list(batches)
    resumed = ps.Loader(described())
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)
    parts: list[list[Any]] = []
    for rank in range(2):
        with ps.Loader(described(), workers=pool, shard=ps.Shard(rank, 2)) as loader:
            loader.load_state_dict(state)
            parts.append([batch["text"] for batch in loader])
    assert [first + second for first, second in zip(*parts, strict=True)] == [batch["text"] for batch in rest]


def test_loaders_share_a_pool(pool: Any) -> None:
    """Two loaders that take turns, and one that was left early, each get their own batches."""
    with ps.Loader(described(), workers=pool) as one, ps.Loader(ps.range(90).batch(9), workers=pool) as other:
        next(iter(one))
        pairs = list(zip(one, other, strict=False))
    assert_same([pair[1] for pair in pairs], list(ps.range(90).batch(9)))
    wanted = list(ps.Loader(described()))  # epoch 0
    assert len(pairs) == 10 < len(wanted)
    assert_same([pair[0]["text"] for pair in pairs], [batch["text"] for batch in list(described().epoch(1))[:10]])


class OddError(Exception):
    """An exception of a function of the dataset."""


def odd(number: int) -> int:
    """Return the number, unless it is 55."""
    if number == 55:
        raise OddError("an odd one")
    return number


def test_an_exception_comes_after_the_batches_before_it(pool: Any) -> None:
    """It has its type, its step and its host, comes again at the next call, and can be passed by a seek."""
    with ps.Loader(ps.range(100).map(odd).batch(10), workers=pool) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(5)] == [0, 10, 20, 30, 40]
        for _ in range(2):
            with pytest.raises(OddError, match="an odd one") as caught:
                next(batches)
            notes = "\n".join(caught.value.__notes__)
            assert "step 5" in notes
            assert "On host" in notes
        loader.seek(6)
        assert [batch[0] for batch in loader] == [60, 70, 80, 90]


def test_a_class_that_a_function_defines_is_sent(pool: Any) -> None:
    """The processes find the same dataset, though such a class is sent by value, and with less than its name."""

    class Adds:
        def __call__(self, number: int) -> int:
            return number + 1

    with ps.Loader(ps.range(8).map(Adds()).batch(4), workers=pool) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_report_has_the_times_of_other_hosts(pool: Any) -> None:
    """The time of each step is that of the processes; the elements and batches that it is divided by are, too."""
    dataset = ps.range(200).map(lambda number: [number] * (sum(range(20_000)) > 0), name="busy").batch(10)
    with ps.Loader(dataset, workers=pool) as loader:
        for _ in loader:
            pass
        report = loader.report()
    seconds = {step.name: step.seconds for step in report.steps}
    assert report.workers == report.processors == 2
    assert seconds["busy"] == max(seconds.values()) > 10 * 100e-6
    assert report.work_seconds < 1
    with ps.Loader(dataset, workers=pool) as loader, pytest.raises(UsageError, match="verify measures with workers of"):
        loader.verify()


@pytest.mark.parametrize("kind", ["batches", "inputs"])
def test_a_trace_has_the_work_of_each_process(pool: Any, kind: str, tmp_path: Path) -> None:
    """The tracks of the processes, named by their hosts, have all steps or elements; no intervals overlap."""
    dataset = counting(kind, tmp_path / "calls")
    with ps.Loader(dataset, workers=pool) as loader:
        for _ in loader:
            pass
        loader.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = {track for track, name in names.items() if re.fullmatch(r"host .+, process [01]", name)}
    assert tracks
    found: set[int] = set()
    for track in tracks:
        work = [event for event in events if event["tid"] == track and event["ph"] == "X"]
        assert all(one["ts"] + one["dur"] <= other["ts"] + 0.01 for one, other in itertools.pairwise(work))
        for event in work:
            start, stop = map(int, re.findall(r"\d+", event["name"])[-2:])
            found.update(range(start, stop + 1))
    assert found == set(range(100 if kind == "batches" else 400))


def folded(step: Callable[[int], int] = abs) -> ps.Dataset[Any]:
    """Return a dataset that packs sequences: some elements are left out, and two inputs are mixed."""
    made = ps.range(600, seed=7).shuffle().map(step, name="step", on_error="skip").filter(lambda number: number % 7 > 0)
    parts = {"one": made, "other": ps.range(300).map(lambda number: 1000 + number)}
    rows = ps.mix(parts, weights={"one": 2, "other": 1}).map(lambda number: {"tokens": np.arange(number % 40 + 1)})
    return rows.pack(length=64).batch(4)


def test_datasets_that_are_read_in_order_are_folded_here(pool: Any) -> None:
    """The processes compute the inputs, with the steps below the fold; batches and states are those of any loader."""
    expected = ps.Loader(folded())
    with ps.Loader(folded(), workers=pool) as loader:
        for _ in range(2):
            found = list(loader)
            assert_same(found, list(expected))
        batches = iter(loader)
        _ = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        rest = list(batches)
        assert "step" in {step.name for step in loader.report().steps}
    resumed = ps.Loader(folded())
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)
    with ps.Loader(folded(), workers=pool) as loader:
        loader.load_state_dict(state)
        assert_same(list(loader), rest)


def test_an_exception_below_a_fold_comes_after_the_batches_before_it(pool: Any) -> None:
    """It has its type, comes again at the next call, and the batches before it were delivered."""
    with ps.Loader(ps.range(100).map(odd).window_shuffle(4).batch(5), workers=pool) as loader:
        expected = iter(ps.Loader(ps.range(100).map(odd).window_shuffle(4).batch(5)))
        batches = iter(loader)
        for _ in range(10):
            assert_same(next(batches), next(expected))
        for _ in range(2):
            with pytest.raises(OddError, match="an odd one"):
                next(batches)


def test_events_of_elements_are_counted_once(pool: Any) -> None:
    """Elements that were left out or replaced elsewhere are in the loader's own record."""
    dataset = ps.range(100).map(odd, name="odd", on_error=ps.Substitute()).batch(10)
    with ps.Loader(dataset, workers=pool) as loader:
        assert_same(list(loader), list(dataset))
        assert [(event.step, event.position) for event in loader.replaced()] == [("odd", 55)]


def killing(marks: Path, positions: tuple[int, ...], own: int) -> Callable[[int], int]:
    """Return a function that kills the process of Ray that is the first to compute some numbers."""

    def kill(number: int) -> int:
        mark = marks / str(number)
        if os.getpid() != own and number in positions and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return kill


def test_killed_processes_are_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, set_constant: Callable[[str, object], None]
) -> None:
    """Processes that die in the middle of a batch change no batch; their deaths are recorded."""
    set_constant("_LATE_SECONDS", 1000.0)  # otherwise others compute it, and the epoch ends before the last is reported
    kill = killing(tmp_path, (3, 150, 260), os.getpid())
    dataset = ps.range(400).map(kill).batch(4)
    with caplog.at_level(logging.WARNING, "penstock"), door.Pool(2) as pool, ps.Loader(dataset, workers=pool) as loader:
        assert_same(list(loader), list(dataset))
        assert len(loader.deaths()) == 3
    assert len(list(tmp_path.iterdir())) == 3
    assert "was lost" in caplog.text


def ending(numbers: tuple[int, ...], own: int, *, hangs: bool = False) -> Callable[[int], int]:
    """Return a function that kills each process which computes some numbers, or hangs there; one process it spares."""

    def end(number: int) -> int:
        if number in numbers:
            if os.getpid() == own:
                raise OddError("an odd one")
            if hangs:
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return end


def test_a_row_that_kills_each_process_is_named() -> None:
    """When a process took care, the error names the row; the batches before it were delivered, others follow."""
    dataset = ps.range(40).map(ending((22,), os.getpid())).batch(4)
    with door.Pool(1) as pool, ps.Loader(dataset, workers=pool) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(5)] == [0, 4, 8, 12, 16]
        with pytest.raises(WorkerError, match="row 2 of step 5, at epoch 0, position 22, key 22"):
            next(batches)
        assert loader.deaths()[-1].rows == (2, 3)
        loader.seek(6)
        assert [batch[0] for batch in loader] == [24, 28, 32, 36]


@pytest.mark.parametrize("hangs", [False, True])
def test_rows_that_end_processes_are_replaced(*, hangs: bool) -> None:
    """A step with `on_error=` replaces rows that kill processes, or hang in them for longer than the timeout."""
    end = ending((9, 22), os.getpid(), hangs=hangs)
    dataset = ps.range(40).map(end, name="end", on_error=ps.Substitute()).batch(4)
    limits = ps.Limits(timeout=0.5 if hangs else None)
    with door.Pool(1) as pool, ps.Loader(dataset, workers=pool, limits=limits) as loader:
        assert_same(list(loader), list(dataset))
        assert [event.position for event in loader.replaced()] == [9, 22]


def test_a_row_is_not_blamed_for_lost_processes(tmp_path: Path) -> None:
    """A row at which five processes in turn are lost, also those that take care, is delivered by the next one."""

    def lose(number: int) -> int:
        marks = [tmp_path / str(index) for index in range(5)]
        free = [mark for mark in marks if not mark.exists()]
        if number == 22 and free:
            free[0].touch()
            own = psutil.Process()
            (actor,) = [each for each in (own, *own.parents()) if each.name().startswith("ray::Worker")]
            actor.kill()
            signal.pause()  # a worker process of it ends after it
        return number

    dataset = ps.range(40).map(lose).batch(4)
    with door.Pool(1) as pool, ps.Loader(dataset, workers=pool) as loader:
        assert [batch[0] for batch in loader] == list(range(0, 40, 4))
        assert len(loader.deaths()) == 5


def test_elements_below_a_fold_that_end_processes_are_left_out() -> None:
    """Eight processes are lost at the element; then a step with `on_error=` leaves it out, or an error names it."""
    end = ending((22,), os.getpid())
    with door.Pool(1) as pool:
        with ps.Loader(folded(end), workers=pool) as loader:
            assert_same(list(loader), list(folded(end)))
        dataset = ps.range(40).map(end).window_shuffle(4).batch(4)
        with (
            ps.Loader(dataset, workers=pool) as loader,
            pytest.raises(WorkerError, match="position 22 of epoch 0, key 22, repeatedly crashes"),
        ):
            list(loader)


def test_batches_come_as_they_become_ready(pool: Any, tmp_path: Path) -> None:
    """With `ordered=False` a late batch doesn't delay those after it; a state has those that were delivered."""
    gate, opened = tmp_path / "gate", tmp_path / "opened"
    os.mkfifo(gate)
    writer = os.open(gate, os.O_RDWR)
    opened.touch()

    def wait(number: int) -> int:
        threading.Event().wait(0.005)  # so that a span, in which a late batch delays others, has few batches
        return len(gate.read_bytes()) if number == 0 else number

    dataset = ps.range(160).map(wait).batch(2)
    with ps.Loader(dataset, workers=pool, ordered=False) as loader:
        batches = iter(loader)
        first = [int(next(batches)[0]) for _ in range(10)]
        state = loader.state_dict()
        opened.rename(gate)
        os.close(writer)  # all that read the pipe meet its end
        rest = [int(batch[0]) for batch in batches]
    assert 0 not in first
    assert sorted(first + rest) == list(range(0, 160, 2))
    with ps.Loader(dataset, workers=pool, ordered=False) as loader:
        loader.load_state_dict(state)
        assert sorted(int(batch[0]) for batch in loader) == sorted(rest)


def test_a_lost_host_costs_only_time(cluster: Any) -> None:
    """While all processes are on a host that is killed, another host takes them over; the batches are the same."""
    hosts = [cluster.add_node(num_cpus=2, resources={"spare": 2}, object_store_memory=100_000_000)]
    dataset = ps.range(3000).map(lambda number: sum(range(10_000)) * 0 + number).batch(3)
    with door.Pool(2, options={"resources": {"spare": 1}}) as pool, ps.Loader(dataset, workers=pool) as loader:
        found: list[Any] = []
        for batch in loader:
            found.append(batch)
            if len(found) == 20:
                cluster.remove_node(hosts.pop(), allow_graceful=False)
                hosts.append(cluster.add_node(num_cpus=2, resources={"spare": 2}, object_store_memory=100_000_000))
        assert loader.deaths()
    cluster.remove_node(hosts.pop())
    assert_same(found, list(dataset))


def test_a_silent_process_is_not_waited_for() -> None:
    """While a process is stopped by SIGSTOP, the other one computes all that the trainer waits for."""
    dataset = ps.range(200).map(lambda number: np.array([number, os.getpid()])).batch(2)
    with door.Pool(2) as pool, ps.Loader(dataset, workers=pool) as loader:
        batches = iter(loader)
        found = [next(batches)]
        stopped = psutil.Process(int(found[0][0, 1]))
        stopped.suspend()
        try:
            found += batches
        finally:
            stopped.resume()
        assert [int(row[0]) for batch in found for row in batch] == list(range(200))
        assert len({int(row[1]) for batch in found for row in batch}) == 2


def test_without_any_process_the_trainer_computes(
    set_constant: Callable[[str, object], None], caplog: pytest.LogCaptureFixture
) -> None:
    """If Ray has no room for the processes, the loader delivers the same batches, and says that it is alone."""
    set_constant("PATIENCE_SECONDS", 0.0)
    dataset = ps.range(20).map(odd).batch(5)
    options = {"resources": {"missing": 1}}
    with caplog.at_level(logging.WARNING, "penstock"), door.Pool(2, options=options) as pool:
        assert_same(list(ps.Loader(dataset, workers=pool)), list(dataset))
    assert "no process of the pool has been ready" in caplog.text


def test_a_host_with_another_version_refuses(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch raises an error that names both versions."""
    monkeypatch.setattr(ps, "__version__", "9.9.9")
    with (
        ps.Loader(ps.range(8).batch(2), workers=pool) as loader,
        pytest.raises(UsageError, match=r"has Penstock 0\.1\.0, and host .* has 9\.9\.9"),
    ):
        next(iter(loader))


def test_closing_a_pool_ends_its_processes() -> None:
    """The processes end with the pool, and its loaders say that it was closed."""
    pool = door.Pool(1)
    loader = ps.Loader(ps.range(80).map(lambda _: os.getpid()).batch(2), workers=pool)
    batches = iter(loader)
    process = psutil.Process(int(next(batches)[0]))
    pool.close()
    process.wait(20)
    with pytest.raises(ClosedError, match="the pool was closed"):
        _ = list(batches)
    with pytest.raises(ClosedError, match="the pool was closed"):
        ps.Loader(ps.range(8), workers=pool)


NAMED = """
import sys, ray, penstock as ps, penstock.ray
from tests.ray.test_pool import pids
ray.init(sys.argv[1], log_to_driver=False)
print("ready", flush=True), sys.stdin.readline()
with penstock.ray.Pool(2, name="shared") as pool, ps.Loader(pids(), workers=pool) as loader:
    print(*sorted({int(pid) for batch in loader for pid in batch}))
"""


@contextmanager
def program(text: str, *arguments: str) -> Generator[Callable[[], list[str]]]:
    """Start a program; when it is ready, yield a function that lets it continue, and returns what it prints then."""
    command = [sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield lambda: started.communicate("\n")[0].split()


def pids() -> ps.Dataset[Any]:
    """Return a dataset whose elements are the processes that compute them."""
    return ps.range(2000).map(lambda number: os.getpid() + 0 * (sum(range(20_000)) + number)).batch(4)


def test_programs_share_a_pool_by_its_name(cluster: Any, set_constant: Callable[[str, object], None]) -> None:
    """Another program uses the same processes. They outlive both, start again when needed, and end when idle."""
    set_constant("_IDLE_SECONDS", 3.0)
    with (
        program(NAMED, cluster.address) as other,
        door.Pool(2, name="shared") as pool,
        ps.Loader(pids(), workers=pool) as loader,
    ):
        own = set[int]()
        while len(own) < 2:  # on a busy machine one of the processes may compute a whole epoch
            own |= {int(pid) for batch in loader for pid in batch}
        assert set() < {int(pid) for pid in other()} <= own
        processes = [psutil.Process(pid) for pid in own]
        assert psutil.wait_procs(processes, timeout=20)[1] == []
        again = [psutil.Process(int(pid)) for pid in {int(pid) for batch in loader for pid in batch}]
        assert not loader.deaths()
    assert psutil.wait_procs(again, timeout=20)[1] == []


def counted(calls: Path, number: int) -> dict[str, Any]:
    """Return an element that takes some time; write a byte to a file, which counts the calls of all programs."""
    with calls.open("ab", buffering=0) as file:
        file.write(b"x")
    return {"sum": sum(range(20_000)) + number}


def counting(kind: str, calls: Path, seed: int = 7) -> ps.Dataset[Any]:
    """Return a dataset whose batches, or the inputs of whose fold, are counted; each epoch has 400 elements."""
    made = ps.range(400, seed=seed).shuffle().map(partial(counted, calls))
    return made.batch(4) if kind == "batches" else made.window_shuffle(16).batch(4)


ALIKE = {"_SPAN_BYTES": 1, "_LATE_SECONDS": 1000.0}
"""Spans of one batch or position, and none that is late, whatever a busy machine takes."""
SHARING = """
import sys, pathlib, ray, penstock as ps, penstock.ray
from penstock.ray import _dealer
from tests.ray.test_pool import ALIKE, counting
vars(_dealer).update(ALIKE)
address, kind, calls = sys.argv[1:]
ray.init(address, log_to_driver=False)
print("ready", flush=True), sys.stdin.readline()
with penstock.ray.Pool(2, name=kind) as pool, ps.Loader(counting(kind, pathlib.Path(calls)), workers=pool) as loader:
    print(*[number for batch in loader for number in batch["sum"]])
"""


@pytest.mark.parametrize("kind", ["batches", "inputs"])
def test_programs_with_one_dataset_compute_it_once(
    kind: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loaders that take turns, and another program, get the batches of one computation; another seed has its own.

    Few elements are computed again: those whose process had no room for them, so that another one got them.
    """
    for name, value in ALIKE.items():
        monkeypatch.setattr(f"penstock.ray._dealer.{name}", value)
    monkeypatch.setattr("penstock.ray._team._IDLE_SECONDS", 3.0)
    calls = tmp_path / "calls"
    dataset = counting(kind, calls)
    with program(SHARING, cluster.address, kind, str(calls)) as third, door.Pool(2, name=kind) as pool:
        with ps.Loader(dataset, workers=pool) as one, ps.Loader(dataset, workers=pool) as other:
            pairs = list(zip(one, other, strict=True))
        printed = third()
        count = calls.stat().st_size
        with ps.Loader(counting(kind, calls, seed=8), workers=pool) as loader:
            assert_same(list(loader), list(counting(kind, tmp_path / "own", seed=8)))
    wanted = list(counting(kind, tmp_path / "own"))
    for found in zip(*pairs, strict=True):
        assert_same(list(found), wanted)
    assert printed == [str(number) for batch in wanted for number in batch["sum"]]
    assert 400 <= count < 1.5 * 400


def odd_until(mark: Path, number: int) -> int:
    """Return the number, unless it is 55 and a file doesn't exist."""
    if number == 55 and not mark.exists():
        raise OddError("an odd one")
    return number


def test_an_exception_is_not_shared(tmp_path: Path, set_constant: Callable[[str, object], None]) -> None:
    """A span with an exception is computed again for the next program that requests it."""
    set_constant("_IDLE_SECONDS", 3.0)
    dataset = ps.range(100).map(partial(odd_until, tmp_path / "mark")).batch(10)
    with door.Pool(1, name="odd") as pool, ps.Loader(dataset, workers=pool) as loader:
        with pytest.raises(OddError, match="an odd one"):
            list(loader)
        (tmp_path / "mark").touch()
        with ps.Loader(dataset, workers=pool) as other:
            assert_same(list(other), list(dataset))


def test_a_loader_may_own_its_pool() -> None:
    """`workers="ray"` starts processes that end with it. By default there are as many as the cluster has room for."""
    with ps.Loader(pids(), workers="ray", num_workers=1) as loader:
        process = psutil.Process(int(next(iter(loader))[0]))
        assert "1 process of a Ray cluster" in repr(loader)
    process.wait(20)
    room = int(ray.available_resources()["CPU"])
    with door.Pool(options={"num_cpus": room}) as pool:
        assert "1 process of a Ray cluster" in repr(pool)


def test_what_a_pool_cannot_do_is_refused(pool: Any) -> None:
    """The errors say what to use instead."""
    owner = ps.Loader(ps.range(8), workers=pool)
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (UsageError, "num_workers=4 beside it", lambda: ps.Loader(ps.range(8), workers=pool, num_workers=4)),
        (UsageError, "leave isolated=True out", lambda: ps.Loader(ps.range(8), workers=pool, isolated=True)),
        (
            GraphError,
            "all of this dataset can only be read in order",
            lambda: ps.Loader(ps.stream([1, 2]), workers=pool),
        ),
        (UsageError, "itself: workers=pool", lambda: ps.Loader(ps.range(8), workers=owner)),
        (UsageError, "num_workers", lambda: door.Pool(0)),
        (UsageError, "num_workers", lambda: ps.Loader(ps.range(8), workers="ray", num_workers=0)),
        (UsageError, "name must be a text", lambda: door.Pool(1, name="")),
        (UsageError, "options must be a mapping", lambda: door.Pool(1, options=3)),
    ]
    for error, text, call in refused:
        with pytest.raises(error, match=text):
            call()


def test_batches_can_be_awaited(pool: Any) -> None:
    """`async for` gets the same batches, without a wait that blocks the event loop."""

    async def collect(dataset: ps.Dataset[Any]) -> list[Any]:
        return [batch async for batch in ps.Loader(dataset, workers=pool)]

    for dataset in (ps.range(30).batch(3), folded()):
        assert_same(asyncio.run(collect(dataset)), list(dataset))

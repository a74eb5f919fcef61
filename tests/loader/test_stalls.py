"""A stalled worker thread is named by a warning in the log and, with a timeout, by an error in the consumer."""

import re
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import WorkerError
from tests.constants import SetConstant
from tests.dataset.functions import same
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.sent_functions import hangs_at_five
from tests.messages import anything
from tests.workers.processes.trouble import dying

TIMEOUT = 0.2


class Hanging:
    """A function of elements that hangs at some of them until the test releases it."""

    def __init__(self, *at: int) -> None:
        self.at = at
        self.entered = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self, element: int) -> int:
        """Return the element; at some of them, only after the release."""
        if element in self.at:
            self.entered.release()
            assert self.released.wait(PATIENCE_SECONDS)
        return element


@pytest.fixture
def hanging() -> Generator[Hanging]:
    """Return a function that hangs at 5, and release it after the test."""
    function = Hanging(5)
    yield function
    function.released.set()


def threads(dataset: ps.Dataset[Any], timeout: float | None = TIMEOUT, **options: Any) -> ps.Loader[Any]:
    """Return a loader with two worker threads by default."""
    options = {"num_workers": 2, "workers": "threads", **options}
    return ps.Loader(dataset, limits=ps.Limits(timeout=timeout), **options)


def stalls(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged warnings about waiting."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock" and "waited" in each.getMessage()]


class Released(threading.Thread):
    """A thread that releases a function when the log has a warning."""

    def __init__(self, function: Hanging, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self._function = function
        self._logged = threading.Event()
        caplog.handler.addFilter(self._saw)
        self.start()

    def _saw(self, record: Any) -> bool:
        if "waited" in record.getMessage():
            self._logged.set()
        return True

    def run(self) -> None:
        """Wait for the warning."""
        assert self._logged.wait(PATIENCE_SECONDS)
        self._function.released.set()


def test_a_stall_is_logged_once(
    tmp_path: Path, hanging: Hanging, caplog: pytest.LogCaptureFixture, set_constant: SetConstant
) -> None:
    """The warning names worker, step, position, key, file and place; then the epoch continues unchanged."""
    set_constant("STALL_SECONDS", 0.1)
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text(str(number))
    dataset = ps.read(ps.sources.Files(tmp_path, "*.txt")).map(lambda text: hanging(int(text["bytes"]))).batch(2)
    released = Released(hanging, caplog)
    with threads(dataset, None) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    released.join()
    (message,) = stalls(caplog)
    assert "worker 0 has" in message or "worker 1 has" in message
    parts = "of step 2", "epoch 0", "key 5", "5.txt", "Hanging.__call__", "test_stalls.py", "threading.py"
    assert [part for part in (*parts, "Limits(timeout=...)") if part not in message] == []


def test_an_error_advises_to_pass_the_hanging_batch_alone() -> None:
    """Small batches that wait with the hanging one are not delivered, and the advice passes none of them."""
    hanging = Hanging(300)
    with threads(ps.range(400).map(hanging).batch(1)) as loader:
        delivered: list[int] = []
        with pytest.raises(WorkerError) as raised:
            delivered.extend(int(batch[0]) for batch in loader)
        assert delivered == [*range(len(delivered))]
        advised = re.findall(r"seek\((\d+)\)", str(raised.value))
        assert advised in ([], [str(len(delivered) + 1)])
        hanging.released.set()
        assert [int(batch[0]) for batch in loader] == [*range(400)]


def test_a_seek_passes_a_hanging_batch(hanging: Hanging) -> None:
    """One thread fewer computes the batches after it; the other one, when it wakes up, writes over none of them."""

    def row(element: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.full(64, hanging(element))

    with threads(ps.range(64).map(row).batch(4), prefetch=1) as loader:
        batches = iter(loader)
        assert next(batches)[:, 0].tolist() == [0, 1, 2, 3]
        with pytest.raises(WorkerError) as raised:
            next(batches)
        assert any("step 1" in note for note in raised.value.__notes__)
        assert isinstance(raised.value, RuntimeError)
        assert raised.value.exit_code is None
        loader.seek(2)
        rest = list(loader)
        hanging.released.set()
        loader.seek(0)
        again = list(loader)  # the thread computes again
    for step, batch in [*enumerate(again), *enumerate(rest, start=2)]:
        assert (batch == np.arange(4 * step, 4 * step + 4)[:, None]).all()
    assert (len(again), len(rest)) == (16, 14)


def test_an_error_says_that_all_threads_hang(hanging: Hanging) -> None:
    """If every thread hangs, a later batch's error names the work at which its thread hangs."""
    with threads(ps.range(16).map(hanging).batch(4), num_workers=1) as loader:
        with pytest.raises(WorkerError, match="key 5"):
            list(loader)
        loader.seek(3)
        with pytest.raises(WorkerError, match=r"worker 0 was at the same work.*key 5"):
            list(loader)
        hanging.released.set()
        assert len(list(loader)) == 1


def test_out_of_order_a_hanging_batch_delays_no_other(hanging: Hanging) -> None:
    """With `ordered=False` the other batches are delivered before the error."""
    with threads(ps.range(32).map(hanging).batch(4), ordered=False) as loader:
        seen: list[list[int]] = []
        with pytest.raises(WorkerError, match="key 5"):
            seen.extend(batch.tolist() for batch in loader)
        hanging.released.set()
    assert sorted(seen) == [[*range(start, start + 4)] for start in range(0, 32, 4) if start != 4]


def test_waiting_for_a_merge_is_not_a_stall() -> None:
    """A worker that waits while another merges doesn't count as hanging."""
    gate = Gate(0)
    limits = ps.Limits(timeout=PATIENCE_SECONDS, num_batch_workers=1)

    def merge(rows: list[int]) -> int:
        return int(gate(int(rows[0])))

    with ps.Loader(ps.range(8).batch(2, merge=merge), num_workers=3, workers="threads", limits=limits) as loader:
        batches = iter(loader)
        gate.wait_entered()
        gate.open()
        assert list(batches) == [0, 2, 4, 6]


def test_a_hanging_worker_init_is_named() -> None:
    """The error of the first batch names `worker_init`."""
    released = threading.Event()
    limits = ps.Limits(timeout=TIMEOUT, worker_init=lambda _: released.wait(PATIENCE_SECONDS))
    with ps.Loader(ps.range(8).batch(4), num_workers=2, workers="threads", limits=limits) as loader:
        with pytest.raises(WorkerError, match="worker_init"):
            next(iter(loader))
        released.set()
        assert len(list(loader)) == 2


def folded(dataset: ps.Dataset[Any]) -> ps.Dataset[Any]:
    """Return batches that a fold thread reads ahead."""
    return dataset.filter(lambda _: True).batch(4)


def above(hanging: Hanging) -> Callable[[Any], Any]:
    """Return a function of rows or a batch that hangs where the second element says so."""

    def hangs(rows: Any) -> Any:
        hanging(int(rows[1]))
        return np.asarray(rows)

    return hangs


IN_A_ROW = r"(?s)position.*key 5.*__call__"
HANGING: dict[str, tuple[Callable[[Hanging], ps.Dataset[Any]], str]] = {
    "a row": (
        lambda hanging: ps.range(16).map(hanging).batch(4),
        r"(?s)timeout=0\.2 .*step 1.*key 5.*seek\(2\).*__call__",
    ),
    "a row below a fold": (lambda hanging: folded(ps.range(16).map(hanging)), IN_A_ROW),
    "a row below a fold and steps": (lambda hanging: folded(ps.range(16).map(hanging)).map(same), IN_A_ROW),
    "a row below a window": (lambda hanging: ps.range(16).map(hanging).window_shuffle(2).batch(4), IN_A_ROW),
    "a stream": (
        lambda hanging: ps.stream(lambda: map(hanging, range(16))).batch(4).map(same),
        r"(?s)the thread that reads in order.*__call__",
    ),
    "a merge": (lambda hanging: ps.range(16).batch(4, merge=above(hanging)), "the merge of step 1"),
    "a step above a fold": (lambda hanging: folded(ps.range(16)).map(above(hanging)), r"(?s)a merge.*hangs"),
}


@pytest.mark.parametrize("name", HANGING)
def test_whatever_hangs_is_named(name: str, hanging: Hanging) -> None:
    """The consumer raises at each call until the function returns; then all batches come."""
    make, message = HANGING[name]
    with threads(make(hanging)) as loader:
        seen: list[list[int]] = []
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(WorkerError, match=message):
                seen.extend(batch.tolist() for batch in batches)
        hanging.released.set()
        seen.extend(batch.tolist() for batch in batches)
    assert seen == [batch.tolist() for batch in make(Hanging())]


def test_closing_does_not_wait_for_a_hanging_thread(
    hanging: Hanging, caplog: pytest.LogCaptureFixture, set_constant: SetConstant
) -> None:
    """`close` waits a moment, logs the thread and returns; the thread ends when its function returns."""
    set_constant("FUNCTION_SECONDS", 0.1)
    with threads(ps.range(16).map(hanging).batch(4), num_workers=3) as loader, pytest.raises(WorkerError):
        list(loader)
    assert any("still inside a function" in each.getMessage() for each in caplog.records)
    assert not hanging.released.is_set()


def test_an_isolated_loader_raises_a_timeout() -> None:
    """A hanging thread of the helper is a WorkerError in the consumer's process."""
    with threads(ps.range(16).map(hangs_at_five).batch(4), isolated=True) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(WorkerError, match=r"(?s)timeout=0\.2 .*key 5.*hangs_at_five"):
            next(batches)
        loader.seek(2)
        assert [batch.tolist() for batch in loader] == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_stalled_process_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, set_constant: SetConstant
) -> None:
    """The warning comes before the timeout at which the process is killed."""
    set_constant("STALL_SECONDS", 0.1)
    dataset = ps.range(64).map(dying.Once(str(tmp_path / "hung"), dying.hangs)).batch(8)
    limits = ps.Limits(timeout=anything(np.float32(1.5)))
    with ps.Loader(dataset, num_workers=1, workers="processes", limits=limits) as loader:
        assert len(list(loader)) == 8
    assert any("worker 0 has been at the same work" in message for message in stalls(caplog))
    assert not any("Limits(timeout" in message for message in stalls(caplog))


def test_a_handler_that_raises_a_timeout_ends_the_wait(hanging: Hanging) -> None:
    """A TimeoutError of the program's own alarm is raised by the waiting call, in place of the loader's timeout."""

    def alarm(number: int, frame: object) -> None:
        del number, frame
        raise TimeoutError("the program's own")

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with threads(folded(ps.range(16).map(hanging)), PATIENCE_SECONDS) as loader:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(TimeoutError, match="the program's own"):
                list(loader)
            hanging.released.set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)

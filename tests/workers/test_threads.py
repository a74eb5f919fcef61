"""Each worker is prepared once, by a function of the user, and its errors are raised."""

import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import penstock as ps
from penstock._ring import SlotRing
from penstock._runtime._worker_threads import WorkerThreads
from tests.places import place_of


@pytest.mark.parametrize("workers", [1, 3])
def test_every_worker_is_prepared_once(workers: int) -> None:
    """`worker_init` is called with each worker's number, in its own thread, before its first task; never again."""
    prepared: dict[int, str] = {}
    used: set[str] = set()
    lock = threading.Lock()

    def prepare(number: int) -> None:
        with lock:
            assert number not in prepared
            prepared[number] = threading.current_thread().name

    def remember(number: int) -> int:
        with lock:
            used.add(threading.current_thread().name)
            assert threading.current_thread().name in prepared.values()
        return number

    dataset = ps.range(40).map(remember).batch(4)
    with ps.Loader(dataset, num_workers=workers, limits=ps.Limits(worker_init=prepare)) as loader:
        for _ in range(3):
            assert len(list(loader)) == 10
    assert sorted(prepared) == list(range(workers))
    assert used <= set(prepared.values())


def test_inline_has_no_worker_to_prepare() -> None:
    """Without workers `worker_init` is not called."""

    def prepare(number: int) -> None:
        raise AssertionError(number)

    assert len(list(ps.Loader(ps.range(8).batch(4), limits=ps.Limits(worker_init=prepare)))) == 2


@dataclass(frozen=True)
class Refuses:
    """A `worker_init` that raises an exception of a type."""

    kind: type[BaseException]

    def __call__(self, number: int) -> None:
        """Raise it."""
        raise self.kind(f"no device {number}")


NUMBERS = ps.range(40).batch(4)


@pytest.mark.parametrize(
    ("dataset", "kind", "place"),
    [
        *(place_of("threads", NUMBERS, kind) for kind in (RuntimeError, KeyError, SystemExit)),
        place_of("threads", ps.range(40).filter(bool).batch(4), RuntimeError),
        *(place_of(name, NUMBERS, LookupError) for name in ("processes", "isolated threads")),
    ],
)
def test_an_error_of_preparing_is_raised(dataset: ps.Dataset, kind: type[BaseException], place: dict[str, Any]) -> None:
    """The exception of `worker_init` replaces a batch, with a note that names the worker; nothing is lost."""
    with ps.Loader(dataset, **place, limits=ps.Limits(worker_init=Refuses(kind))) as loader:
        for _ in range(2):
            with pytest.raises(kind, match="no device") as caught:
                next(iter(loader))
            assert re.search(r"(in worker_init of|while) worker \d", "\n".join(caught.value.__notes__))
        assert loader.state_dict()["step"] == 0


def test_closing_from_two_threads_gives_memory_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that this process keeps for arrays is less by what the threads added, whenever the other closes."""
    changes: list[int] = []

    def allow(more_bytes: int) -> None:
        changes.append(more_bytes)
        if len(changes) == 2:
            threads.close()  # as another thread, at this moment

    monkeypatch.setattr("penstock._runtime._worker_threads.allow_recycled", allow)
    threads = WorkerThreads(SlotRing(1), 1, lambda _: lambda _: None)
    threads.close()
    assert changes[0] > 0
    assert sum(changes) == 0

"""An iterator is read by one thread at a time: a second thread is refused, and no batch is lost or repeated."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import UsageError
from tests.dataset.functions import keep
from tests.loader.sent_functions import Waits
from tests.places import in_places
from tests.promptness import PATIENCE_SECONDS


def datasets(pipe: Path) -> list[ps.Dataset[Any]]:
    """Return an indexable dataset, and one that is read in order."""
    waiting = ps.range(12).map(Waits(pipe))
    return [waiting.batch(2), waiting.filter(keep).batch(2)]


class Reader:
    """A thread that requests one batch of an iterator."""

    def __init__(self, iterator: Iterator[Any], name: str, has_failed: threading.Event) -> None:
        self.batch: Any = None
        self.error: BaseException | None = None
        self._iterator = iterator
        self._has_failed = has_failed
        self.thread = threading.Thread(target=self._read, name=name)

    def _read(self) -> None:
        try:
            self.batch = next(self._iterator)
        except UsageError as error:
            self.error = error
            self._has_failed.set()


@pytest.mark.parametrize("which", [0, 1], ids=["indexable", "in order"])
@in_places("inline", "thread", "processes", "isolated", "isolated threads", "thread, out of order")
def test_a_second_thread_is_refused(place: dict[str, Any], which: int, tmp_path: Path) -> None:
    """The second thread's error names both threads; the first gets its batch, and each other batch comes once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    has_failed = threading.Event()
    with ps.Loader(datasets(pipe)[which], **place) as loader:
        iterator = iter(loader)
        readers = [Reader(iterator, name, has_failed) for name in ("early bird", "worm")]
        for reader in readers:
            reader.thread.start()
        assert has_failed.wait(PATIENCE_SECONDS)
        assert loader.state_dict()["step"] == 0  # any thread may request the state
        pipe.open("w").close()
        for reader in readers:
            reader.thread.join()
        first, second = sorted(readers, key=lambda reader: reader.error is not None)
        assert (first.batch.tolist(), first.error, second.batch) == ([0, 1], None, None)
        assert "one thread at a time" in str(second.error)
        assert "'early bird'" in str(second.error)
        assert "'worm'" in str(second.error)
        assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_threads_may_take_turns() -> None:
    """Threads that take turns read an iterator together."""
    found: list[list[int]] = []
    with ps.Loader(ps.range(6).batch(2)) as loader:
        iterator = iter(loader)
        for _ in range(3):
            thread = threading.Thread(target=lambda: found.append(next(iterator).tolist()))
            thread.start()
            thread.join()
    assert found == [[0, 1], [2, 3], [4, 5]]


def test_next_inside_of_next_is_refused() -> None:
    """A function of the dataset that requests a batch is refused."""
    iterators: list[Iterator[Any]] = []
    with ps.Loader(ps.range(4).map(lambda number: next(iterators[0]) if iterators else number).batch(2)) as loader:
        iterators.append(iter(loader))
        with pytest.raises(UsageError, match="inside its own next"):
            next(iterators[0])
        iterators.clear()

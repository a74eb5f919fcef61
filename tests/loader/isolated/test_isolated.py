"""An isolated loader delivers the same batches, and the consumer's process computes nothing."""

import asyncio
import os
import select
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ClosedError
from tests.dataset.functions import is_even
from tests.loader.isolated import parts
from tests.loader.isolated.loaders import assert_same, isolated
from tests.workers.processes import functions

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")


def test_a_batch_may_be_a_dataclass_that_computes_a_field() -> None:
    """Its constructor doesn't take the field, so the batch is pickled whole."""
    dataset = ps.range(20).batch(4, merge=parts.Counted)
    with isolated(dataset) as loader:
        assert list(loader) == list(dataset)


def test_other_tasks_run_while_the_helper_starts() -> None:
    """`async for` lets other tasks run while it waits for the first batch of a new process."""
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async def read(loader: ps.Loader) -> int:
        async with asyncio.TaskGroup() as group:
            batches = aiter(loader)
            group.create_task(other())
            first = await anext(batches)
            assert ran == ["other"]
        return int(first[0])

    with isolated(ps.range(40).batch(4)) as loader:
        assert asyncio.run(read(loader)) == 0


def test_a_break_keeps_the_helper() -> None:
    """After a break the next epoch begins at its start in the same process, without batches of the old one."""
    dataset = ps.range(400, seed=1).shuffle().map(parts.where).batch(4)
    pids: set[int] = set()
    numbers = ps.range(400, seed=1).shuffle().batch(4)
    with isolated(dataset) as loader:
        for epoch in range(8):
            for number, batch in enumerate(loader):
                pids.add(int(batch[0, 1]))
                assert batch[:, 0].tolist() == numbers.epoch(epoch)[number].tolist()
                if number == epoch % 4:
                    break
        assert loader.epoch == 7
        assert "in a helper process" in repr(loader)
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_processes_of_the_helper_compute_the_rows() -> None:
    """The consumer computes none."""
    with isolated(ps.range(32).map(parts.where).batch(8), 1, workers="processes") as loader:
        assert os.getpid() not in {pid for batch in loader for pid in batch[:, 1].tolist()}


def test_a_thread_that_waits_takes_no_batch_of_a_newer_iterator(tmp_path: Path) -> None:
    """A newer iterator ends the wait for the older one in another thread, and delivers all of its own batches."""
    question, answer = tmp_path / "question", tmp_path / "answer"
    os.mkfifo(question)
    os.mkfifo(answer)
    with isolated(ps.range(4).map(partial(parts.asks_at_first, tmp_path)).batch(1)) as loader:
        older, errors = iter(loader), list[str]()

        def read() -> None:
            try:
                next(older)
            except ClosedError as error:
                errors.append(str(error))

        reading = threading.Thread(target=read)
        reading.start()
        question.read_bytes()
        newer = iter(loader)
        reading.join()
        assert len(errors) == 1
        assert "a newer iter(loader)" in errors[0]
        answer.write_bytes(b"!")  # for the older one, whose element is still being computed
        question.read_bytes()
        answer.write_bytes(b"!")
        assert [batch.tolist() for batch in newer] == [[0], [1], [2], [3]]


def test_a_closed_iterator_stops_the_helper(tmp_path: Path) -> None:
    """When an iterator is closed, the helper stops reading ahead for it."""
    asked = parts.Asked(tmp_path)
    with isolated(ps.stream(asked).batch(1), prefetch=1000) as loader:
        batches = iter(loader)
        with asked.questions.open("rb", buffering=0) as questions, asked.answers.open("wb", buffering=0) as answers:
            batches.close()
            answered = 0
            while questions.read(1):
                assert answered < 900, "the helper still reads"
                threading.Event().wait(0.001)  # in which the helper may notice
                answered += answers.write(b"!")


def test_close_kills_a_stuck_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` kills a helper that doesn't return from a function."""
    monkeypatch.setenv("PENSTOCK_TEST_FILE", str(tmp_path / "entered"))
    os.mkfifo(tmp_path / "entered")
    loader = isolated(ps.range(100)[parts.DEADLY :].map(parts.stuck).batch(4))
    batches = iter(loader)
    (tmp_path / "entered").read_bytes()
    loader.close()
    with pytest.raises(ClosedError):
        next(batches)


def test_an_interrupted_wait_loses_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C interrupts the wait for a batch; the iterator continues without a lost or repeated batch."""
    monkeypatch.setenv("PENSTOCK_TEST_FILE", str(tmp_path / "pressed"))
    found: list[Any] = []
    with isolated(ps.range(100).map(parts.interrupts_parent).batch(4)) as loader:
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            found.extend(batches)
        found.extend(batches)
    assert [batch[0] for batch in found] == [*range(0, 100, 4)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_that_closes_the_loader_wakes_no_task_of_the_parent(tmp_path: Path) -> None:
    """After a forked child closed the loader, the descriptor that the parent's task waits for stays unreadable."""
    question, answer = tmp_path / "question", tmp_path / "answer"
    os.mkfifo(question)
    os.mkfifo(answer)
    with isolated(ps.range(4).map(partial(parts.asks_at_first, tmp_path)).batch(1)) as loader:
        batches = iter(loader)
        question.read_bytes()
        descriptor = batches.may_wait
        assert descriptor is not None
        child = os.fork()
        if child == 0:
            try:
                loader.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not select.select([descriptor], [], [], 0)[0]
        answer.write_bytes(b"!")
        assert [batch.tolist() for batch in batches] == [[0], [1], [2], [3]]


def test_the_helpers_counts_arrive() -> None:
    """Substituted, skipped and filtered elements are counted once each, as without isolation."""
    dataset = (
        ps.range(100)
        .map(functions.broken, on_error=ps.Substitute())
        .map(parts.strange, on_error="skip")
        .filter(is_even)
        .batch(4)
    )
    with ps.Loader(dataset) as inline, isolated(dataset) as loader:
        assert_same(list(loader), list(inline))
        counted = ("batches", "substituted", "skipped", "filtered")
        assert [loader.stats()[name] for name in counted] == [inline.stats()[name] for name in counted]
        assert loader.replaced() == inline.replaced() != ()

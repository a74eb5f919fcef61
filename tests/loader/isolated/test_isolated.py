"""An isolated loader delivers the same batches, and the consumer's process computes nothing."""

import asyncio
import os
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ClosedError, UsageError
from tests.dataset.functions import is_even
from tests.loader.isolated import parts
from tests.loader.isolated.parts import assert_same, isolated
from tests.workers.processes import functions

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")


@pytest.mark.parametrize(("num_workers", "workers"), [(0, "threads"), (2, "processes")])
def test_the_consumers_process_computes_nothing(num_workers: int, workers: Any) -> None:
    """Functions run in the helper or its workers, and the loader's repr says so."""
    dataset = ps.range(32).map(parts.where).batch(8)
    with isolated(dataset, num_workers, workers=workers) as loader:
        processes = {pid for batch in loader for pid in batch[:, 1].tolist()}
        assert os.getpid() not in processes
        assert "in a helper process" in repr(loader)


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
        for epoch in range(20):
            for number, batch in enumerate(loader):
                pids.add(int(batch[0, 1]))
                assert batch[:, 0].tolist() == numbers.epoch(epoch)[number].tolist()
                if number == epoch % 4:
                    break
        assert loader.epoch == 19
    assert len(pids) == 1


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


def test_kept_batches_take_more_memory() -> None:
    """A consumer that keeps batches gets the rest with one warning, and its batches outlive the loader."""
    dataset = ps.range(400).map(functions.large_row).batch(20)
    with isolated(dataset) as loader:
        with pytest.warns(UserWarning, match="are kept by the training loop") as warned:
            kept = list(loader)
        kept += list(loader)
        assert loader.stats()["bytes_in_flight"] > 0
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert [int(images[-1, -1]) for images in kept] == 2 * [(step * 20 + 19) % 251 for step in range(20)]


def test_copies_use_no_shared_memory() -> None:
    """With `copy=True` nothing is warned of, and memory for a few batches is enough."""
    dataset = ps.range(400).map(functions.large_row).batch(20)
    with warnings.catch_warnings(), isolated(dataset, copy=True, memory="8MB") as loader:
        warnings.simplefilter("error")
        kept = list(loader)
    assert [int(images[0, 0]) for images in kept] == [step * 20 % 251 for step in range(20)]


def test_memory_is_bounded() -> None:
    """Kept batches beyond `memory` are an error; the iterator continues when they are dropped."""
    dataset = ps.range(400).map(functions.large_row).batch(20)
    with isolated(dataset, memory="8MB") as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(loader)
        kept: list[Any] = []
        with pytest.raises(UsageError, match="memory=8000000 is too small"):
            kept.extend(batches)
        count = len(kept)
        assert 1 <= count <= 4
        kept.clear()
        assert [int(images[0, 0]) for images in batches] == [step * 20 % 251 for step in range(count, 20)]


def test_memory_has_room_for_a_batch() -> None:
    """The error has both sizes, and the argument to change."""
    with (
        isolated(ps.range(40).map(functions.large_row).batch(20), memory="1MB") as loader,
        pytest.raises(UsageError, match=r"one of which \d{7} bytes are more than the 1000000 that memory= allows"),
    ):
        next(iter(loader))


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


def test_sparse_tensors_leave_the_helper() -> None:
    """They don't say how large they are."""
    torch = pytest.importorskip("torch")
    with isolated(ps.range(5).map(functions.sparse)) as loader:
        batches = [batch.to_dense() for batch in loader]
    assert len(batches) == 5
    assert all(torch.equal(batch, number * torch.eye(3)) for number, batch in enumerate(batches))


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

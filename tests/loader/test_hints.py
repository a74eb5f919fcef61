"""The log gets a hint, once, where a run loses time or data without an error."""

import threading
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.observe import Report, StepReport
from tests.constants import SetConstant
from tests.loader.sent_functions import slow
from tests.places import in_places


def hints(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """Return the logged messages that have a part."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock" and part in each.getMessage()]


def test_a_training_that_mostly_computes_its_own_batches_is_advised_once(
    caplog: pytest.LogCaptureFixture, set_constant: SetConstant
) -> None:
    """The hint names the slowest step and the change; workers, and a training that waits little, get none."""
    set_constant("LOOKED_AT_SECONDS", 0.1)
    dataset = ps.range(64).map(slow, name="decode").batch(2)
    with ps.Loader(dataset, num_workers=2, workers="threads") as loader:
        assert len(list(loader)) == 32
    with ps.Loader(dataset) as loader:
        for _ in loader:
            threading.Event().wait(0.03)
    assert not hints(caplog, "has waited for")
    with ps.Loader(dataset) as loader:
        for _ in range(2):
            assert len(list(loader)) == 32
    (message,) = hints(caplog, "has waited for")
    assert "'decode' takes most of the time" in message
    assert "num_workers" in message


@in_places("threads", "isolated threads")
def test_threads_that_slow_the_training_are_named_once(
    place: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    set_constant: SetConstant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The training waits for the interpreter's lock, and not for batches; a helper process has a lock of its own."""
    set_constant("LOOKED_AT_SECONDS", 0.01)
    step = StepReport("decode", "map(decode)", 0.04, 1.0, 1.0)
    report = Report(
        (step,), 50, 2.0, workers=2, workers_text="2 threads", processors=4, work_seconds=0.07,
        consumer_seconds=0.04, consumer_p5_seconds=0.016, lock_wait_seconds=0.005,
    )  # fmt: skip

    def report_of(*_: object) -> Report:
        return report

    monkeypatch.setattr("penstock._loader._hints.report_of", report_of)
    with ps.Loader(ps.range(64).map(slow).batch(2), **place) as loader:
        assert len(list(loader)) == 32
        assert len(list(loader)) == 32
    messages = hints(caplog, "slow the training")
    assert len(messages) == (0 if place.get("isolated") else 1)
    assert all("40.0 ms, and about 16.0 ms" in each and 'workers="processes"' in each for each in messages)


def test_a_slow_batch_is_named_with_its_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, set_constant: SetConstant
) -> None:
    """The 1st, the 10th, and so on, in the training's thread; the batches are those of a run without a hint."""
    set_constant("SLOW_SECONDS", 0.003)
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(str(number))
    files = ps.read(ps.sources.Files(tmp_path, "*.txt"))
    with ps.Loader(files.map(lambda file: slow(int(file["bytes"]))).batch(1)) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(20))
    with ps.Loader(ps.range(1).filter(lambda _: True).map(slow).batch(1)) as loader:
        assert len(list(loader)) == 1
    first, tenth, in_order = hints(caplog, "own thread")
    assert "step 0 took" in first
    assert "epoch 0, position 0: key 0 (file" in first
    assert "00.txt" in first
    assert "the 10th of such batches. With num_workers, workers compute batches ahead" in tenth
    assert "from position 0 on" in in_order


def test_a_log_that_fails_costs_no_batch(set_constant: SetConstant, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a log's filter is not raised by the loader, and no batch is lost or repeated."""
    set_constant("SLOW_SECONDS", 0.001)
    asked: list[str] = []

    def fail(record: Any) -> bool:
        asked.append(record.getMessage())
        raise ValueError("no disk")

    caplog.handler.addFilter(fail)
    with ps.Loader(ps.range(4).map(slow).batch(1)) as loader:
        assert [int(batch[0]) for batch in loader] == [0, 1, 2, 3]
    caplog.handler.removeFilter(fail)
    assert len(asked) == 1


@pytest.mark.each_value
@in_places("inline", "threads", "isolated")
@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (ps.range(0).batch(4), "the dataset has no elements"),
        (ps.range(3).batch(4, remainder="drop"), 'its 3 elements are fewer than a batch of 4, and remainder="drop"'),
        (ps.range(30).filter(lambda _: False).batch(4), "its filters left out 30 elements, and too few are left"),
        (ps.range(30).window_shuffle(4).batch(40, remainder="drop"), "fewer than a batch has"),
    ],
)
def test_an_epoch_without_a_batch_is_logged_once(
    dataset: ps.Dataset[Any], reason: str, place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The first epoch that gives nothing is logged with the reason, wherever it is computed."""
    with ps.Loader(dataset, **place) as loader:
        assert not list(loader)
        assert not list(loader)
    (message,) = hints(caplog, "gave no batch")
    assert reason in message

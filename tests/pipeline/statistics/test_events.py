"""An observer gets the events of each stage; one that raises is removed. Waits for room are told from busy time."""

import logging
import sys
from collections.abc import AsyncIterator

import pytest

from penstock.errors import PipelineFailure
from penstock.pipeline import (
    ItemDropped,
    ItemsDone,
    Merge,
    Pipeline,
    PipelineBuilder,
    ProcessExecutor,
    StageEnded,
    StageStarted,
)
from tests.pipeline.running.reading import PATIENCE_SECONDS, Pass, read_by_for

Event = StageStarted | ItemsDone | ItemDropped | StageEnded


def parsing() -> PipelineBuilder:
    """Return a pipeline that parses three texts and fails on one of them."""
    return PipelineBuilder().add_source(["1", "x", "3"]).pipe(int, name="parse").add_sink()


def test_an_observer_gets_the_events_of_each_stage() -> None:
    """A stage starts, reports its calls and dropped items, and ends, in each pass."""
    received: list[Event] = []
    with parsing().build(num_threads=1, max_failures=1, observer=received.append).auto_stop() as pipeline:
        for _ in range(2):
            assert list(pipeline) == [1, 3]
            pipeline.stop()
            of_stage = [event for event in received if event.stage == "parse"]
            received.clear()
            assert of_stage[0] == StageStarted("parse", "sync", 1)
            assert isinstance(of_stage[-1], StageEnded)
            assert of_stage[-1].failure is None
            done = [event for event in of_stage if isinstance(event, ItemsDone)]
            assert (sum(event.items for event in done), sum(event.failures for event in done)) == (2, 1)
            assert all(event.seconds > 0 for event in done)
            (dropped,) = (event for event in of_stage if isinstance(event, ItemDropped))
            assert (dropped.item, type(dropped.error)) == ("'x'", ValueError)
            assert len(of_stage) == len(done) + 3


def _read_early(pipeline: Pipeline) -> None:
    next(iter(pipeline))
    list(pipeline)


def _read_failing(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineFailure):
        list(pipeline)


def test_each_stage_that_started_ends() -> None:
    """Each stage starts, and then ends, in each pass; the others, such as the merged sinks, have no events."""
    merged = PipelineBuilder().add_source(Merge((parsing().get_config(), parsing().get_config())))
    unopened = ProcessExecutor(1, initializer=lambda: None)
    not_opened = PipelineBuilder().add_source([1]).pipe(abs, executor=unopened).pipe(str)
    long = PipelineBuilder().add_source(range(999))
    for builder, read in ((merged, _read_failing), (not_opened, _read_failing), (long, _read_early)):
        received: list[Event] = []
        with builder.add_sink().build(num_threads=1, observer=received.append).auto_stop() as pipeline:
            read(pipeline)
        running: set[str] = set()
        for event in received:
            if isinstance(event, StageStarted):
                assert event.stage not in running
                running.add(event.stage)
            elif isinstance(event, StageEnded):
                running.remove(event.stage)
        assert not running
        assert received


def test_an_observer_that_raises_is_logged_once_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    """Its exception goes to the log with the event that it failed on, and it is not called again."""
    received: list[Event] = []

    def raises(event: Event) -> None:
        received.append(event)
        if len(received) == 2:
            raise LookupError("no such counter")

    with caplog.at_level(logging.ERROR, "penstock"):
        pipeline = parsing().build(num_threads=1, max_failures=1, observer=raises)
        for _ in range(2):
            assert list(pipeline) == [1, 3]
        pipeline.stop()
    assert len(received) == 2
    (record,) = caplog.records
    assert record.name == "penstock"
    assert repr(received[1]) in record.getMessage()
    assert "LookupError: no such counter" in caplog.text


@pytest.mark.parametrize("kind", [StageStarted, ItemsDone, ItemDropped, StageEnded])
@pytest.mark.parametrize("stage", ["source", "parse", "sink"])
def test_an_observer_that_ends_the_program(kind: type[Event], stage: str) -> None:
    """SystemExit of an observer ends the pass as its cause, unless that has ended; the next pass is complete."""
    received: list[Event] = []

    def exits(event: Event) -> None:
        if isinstance(event, kind) and event.stage == stage and not received:
            received.append(event)
            sys.exit("enough")

    with parsing().build(num_threads=1, max_failures=2, observer=exits).auto_stop() as pipeline:
        if (kind, stage) == (ItemsDone, "sink"):  # in the read itself
            with pytest.raises(SystemExit):
                list(pipeline.get_iterator(timeout=PATIENCE_SECONDS))
        else:
            found = read_by_for(pipeline)
            cause = None if found.failure is None else found.failure.__cause__
            assert isinstance(cause, SystemExit) is (bool(received) and kind is not StageEnded)
            assert cause is not None or found.items == [1, 3]
        assert read_by_for(pipeline) == Pass([1, 3])


async def _elements(items: list[int]) -> AsyncIterator[int]:
    for each in items:
        yield each


@pytest.mark.parametrize(
    "builder",
    [
        PipelineBuilder().add_source([[*range(100)]]).disaggregate(),
        PipelineBuilder().add_source([dict.fromkeys(range(100))]).disaggregate(),
        PipelineBuilder().add_source([[*range(100)]]).pipe(_elements),
    ],
    ids=["a list", "a dict", "an async generator"],
)
def test_a_stage_that_waits_for_room_is_not_busy(builder: PipelineBuilder) -> None:
    """While the reader takes nothing, a stage with several values for an item waits for room."""
    with builder.add_sink(1).build(num_threads=1, statistics=True).auto_stop() as pipeline:
        iterator = pipeline.get_iterator(timeout=PATIENCE_SECONDS)
        assert next(iterator) == 0
        while pipeline.report().elapsed_seconds < 0.1:
            pass
        assert [*iterator] == [*range(1, 100)]
        _, stage, _ = pipeline.report().stages
    assert stage.items == 100
    assert stage.wait_output_seconds > 2 * stage.busy_seconds

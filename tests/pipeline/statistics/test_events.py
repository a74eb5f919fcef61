"""Observers hear every event, and one that raises is left out with one message."""

import logging

import pytest

from penstock.pipeline._events import ItemDropped, ItemsDone, StageEnded, StageEvent, StageStarted, guarded

EVENTS: list[StageEvent] = [
    StageStarted("decode", "sync", 2),
    ItemsDone("decode", 8, 1, 0.25),
    ItemDropped("decode", "'a.jpg'", ValueError("truncated")),
    StageEnded("decode"),
]


def test_an_observer_hears_every_event_in_order() -> None:
    """A guarded observer gets the events themselves, one after the other."""
    heard: list[StageEvent] = []
    observe = guarded(heard.append)
    for event in EVENTS:
        observe(event)
    assert heard == EVENTS


def test_an_observer_that_raises_is_reported_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Its exception goes to the log with the event that it met, and it is not called again."""
    heard: list[StageEvent] = []

    def raises(event: StageEvent) -> None:
        heard.append(event)
        if len(heard) == 2:
            raise LookupError("no such counter")

    observe = guarded(raises)
    with caplog.at_level(logging.ERROR, "penstock"):
        for event in [*EVENTS, *EVENTS]:
            observe(event)
    assert heard == EVENTS[:2]
    (record,) = caplog.records
    assert record.name == "penstock"
    assert "ItemsDone(stage='decode'" in record.getMessage()
    assert "LookupError: no such counter" in caplog.text


def test_what_is_no_exception_of_the_observer_passes() -> None:
    """Ctrl-C inside an observer is not the observer's failure."""

    def interrupted(_: StageEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted)(EVENTS[0])

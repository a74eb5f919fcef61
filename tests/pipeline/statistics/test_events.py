"""An observer gets every event; one that raises is logged once and removed."""

import logging

import pytest

from penstock.pipeline import ItemDropped, ItemsDone, StageEnded, StageStarted
from penstock.pipeline._events import StageEvent, guarded

EVENTS: list[StageEvent] = [
    StageStarted("decode", "sync", 2),
    ItemsDone("decode", 8, 1, 0.25),
    ItemDropped("decode", "'a.jpg'", ValueError("truncated")),
    StageEnded("decode"),
]


def test_an_observer_gets_every_event_in_order() -> None:
    """A guarded observer gets the events themselves, one after the other."""
    received: list[StageEvent] = []
    observe = guarded(received.append)
    for event in EVENTS:
        observe(event)
    assert received == EVENTS


def test_an_observer_that_raises_is_logged_once_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    """Its exception goes to the log with the event that it failed on, and it is not called again."""
    received: list[StageEvent] = []

    def raises(event: StageEvent) -> None:
        received.append(event)
        if len(received) == 2:
            raise LookupError("no such counter")

    observe = guarded(raises)
    with caplog.at_level(logging.ERROR, "penstock"):
        for event in [*EVENTS, *EVENTS]:
            observe(event)
    assert received == EVENTS[:2]
    (record,) = caplog.records
    assert record.name == "penstock"
    assert "ItemsDone(stage='decode'" in record.getMessage()
    assert "LookupError: no such counter" in caplog.text


def test_ctrl_c_passes_through_an_observer() -> None:
    """KeyboardInterrupt inside an observer is not the observer's failure."""

    def interrupted(_: StageEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted)(EVENTS[0])

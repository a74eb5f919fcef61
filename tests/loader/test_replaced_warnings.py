"""The log counts replaced and skipped elements, and an epoch that loses all of them is an error."""

import logging
from typing import Any

import pytest

import penstock as ps
from penstock.errors import GraphError
from tests.loader.sent_functions import decode, decode_or_end, refuse
from tests.places import in_places

pytestmark = pytest.mark.each_value


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log's messages about replaced and skipped elements."""
    return [record.getMessage() for record in caplog.records if "were delivered" in record.getMessage()]


@in_places("inline", "threads", "processes", "isolated processes")
@pytest.mark.parametrize(("on_error", "done"), [("skip", "left out"), (ps.Substitute(50), "replaced")])
def test_the_log_counts_lost_elements(
    place: dict[str, Any], on_error: Any, done: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The 1st, 10th and 100th element are logged once each, with step, count, place and exception."""
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        ps.Loader(ps.range(240, seed=1).map(decode, on_error=on_error).batch(4), **place) as loader,
    ):
        assert sum(len(batch) for batch in loader) == (120 if on_error == "skip" else 240)
    messages = warned(caplog)
    assert [text.split(",")[0] for text in messages] == [
        f"step 'decode' has {done} 1 element",
        f"step 'decode' has {done} 10 elements",
        f"step 'decode' has {done} 100 elements",
    ]
    assert all("ValueError" in text and "is broken" in text and "epoch 0, position " in text for text in messages)


@in_places("inline", "threads", "processes", "isolated")
def test_an_epoch_without_elements_is_an_error(place: dict[str, Any]) -> None:
    """The error gives the number of skipped elements and the cause; the next call ends the epoch."""
    with ps.Loader(ps.range(24).map(refuse, on_error="skip").batch(4), **place) as loader:
        for _ in range(2):
            iterator = iter(loader)
            with pytest.raises(GraphError, match=r"gave no batch: on_error='skip' left out 24 .*'refuse'.*is broken"):
                next(iterator)
            assert next(iterator, None) is None


def test_filters_may_leave_out_everything() -> None:
    """A filter, or a skipping step after some batches, may leave out everything without an error."""
    with ps.Loader(ps.range(24).filter(lambda number: number < 0).batch(4)) as loader:
        assert list(loader) == []
    dataset = ps.range(9).map(lambda number: number if number < 8 else refuse(number), name="last", on_error="skip")
    with ps.Loader(dataset.batch(4)) as loader:
        before = [batch.tolist() for _, batch in zip(range(2), loader, strict=False)]
        state = loader.state_dict()
    with ps.Loader(dataset.batch(4)) as loader:
        loader.load_state_dict(state)
        assert (before, list(loader)) == ([[0, 1, 2, 3], [4, 5, 6, 7]], [])


@in_places("inline", "threads", "processes")
def test_an_element_that_is_computed_again_counts_once(place: dict[str, Any]) -> None:
    """The consumer computes a failed batch again, and its replaced elements are counted once."""
    dataset = ps.range(16, seed=1).map(decode, on_error=ps.Substitute(50)).map(decode_or_end).batch(16)
    with ps.Loader(dataset, **place) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no such record"):
                next(iter(loader))
        assert loader.stats()["substituted"] == len(loader.replaced())

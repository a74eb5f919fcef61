"""Elements that steps replace or leave out are told in the log, and an epoch that loses all of them is an error."""

import logging
from typing import Any

import pytest

import penstock as ps
from penstock.errors import GraphError

PLACES: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "workers": "threads"},
    {"num_workers": 2, "workers": "processes"},
    {"isolated": True},
    {"isolated": True, "num_workers": 1, "workers": "processes"},
]
IDS = ["inline", "threads", "processes", "isolated", "isolated processes"]


def decode(number: int) -> int:
    """Return an even number; others are broken."""
    if number % 2:
        raise ValueError(f"{number} is broken")
    return number


def refuse(number: int) -> int:
    """Return nothing."""
    raise ValueError(f"{number} is broken")


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says of elements."""
    return [record.getMessage() for record in caplog.records if "handed out" in record.getMessage()]


@pytest.mark.parametrize("place", PLACES, ids=IDS)
@pytest.mark.parametrize(("on_error", "done"), [("skip", "left out"), (ps.Substitute(50), "replaced")])
def test_the_log_says_so(place: dict[str, Any], on_error: Any, done: str, caplog: pytest.LogCaptureFixture) -> None:
    """The 1st, 10th and 100th element are told once each, with the step, how many, the place and the exception."""
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        ps.Loader(ps.range(240, seed=1).map(decode, on_error=on_error).batch(4), **place) as loader,
    ):
        assert sum(len(batch) for batch in loader) == (120 if on_error == "skip" else 240)
    told = warned(caplog)
    assert [text.split(",")[0] for text in told] == [
        f"step 'decode' has {done} 1 element",
        f"step 'decode' has {done} 10 elements",
        f"step 'decode' has {done} 100 elements",
    ]
    assert all("ValueError" in text and "is broken" in text and "epoch 0, position " in text for text in told)


@pytest.mark.parametrize("place", PLACES, ids=IDS)
def test_an_epoch_of_which_nothing_is_left(place: dict[str, Any]) -> None:
    """It is an error that says how many were left out, and why; the next call ends the epoch."""
    with ps.Loader(ps.range(24).map(refuse, on_error="skip").batch(4), **place) as loader:
        for _ in range(2):
            iterator = iter(loader)
            with pytest.raises(GraphError, match=r"gave no batch: on_error='skip' left out 24 .*'refuse'.*is broken"):
                next(iterator)
            assert next(iterator, None) is None


def keep_none(number: int) -> bool:
    """Return that a filter keeps nothing."""
    return number < 0


def test_what_is_no_error() -> None:
    """Filters may leave out everything, and so may the rest of an epoch that gave batches before."""
    with ps.Loader(ps.range(24).filter(keep_none).batch(4)) as loader:
        assert list(loader) == []
    dataset = ps.range(9).map(lambda number: number if number < 8 else refuse(number), name="last", on_error="skip")
    with ps.Loader(dataset.batch(4)) as loader:
        before = [batch.tolist() for _, batch in zip(range(2), loader, strict=False)]
        state = loader.state_dict()
    with ps.Loader(dataset.batch(4)) as loader:
        loader.load_state_dict(state)
        assert (before, list(loader)) == ([[0, 1, 2, 3], [4, 5, 6, 7]], [])


def decode_or_end(number: int) -> int:
    """Return a number; raise another error for one of them."""
    if number == 14:
        raise LookupError("no such record")
    return number


@pytest.mark.parametrize("place", PLACES[:3], ids=IDS[:3])
def test_an_element_that_is_computed_again_counts_once(place: dict[str, Any]) -> None:
    """Where a later element of the batch raises, the consumer computes the batch again, and replaces the same ones."""
    dataset = ps.range(16, seed=1).map(decode, on_error=ps.Substitute(50)).map(decode_or_end).batch(16)
    with ps.Loader(dataset, **place) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no such record"):
                next(iter(loader))
        assert loader.stats()["substituted"] == len(loader.replaced())

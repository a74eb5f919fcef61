"""The messages of refused arguments: each has the rule, the value and the remedy."""

from typing import Any

import pytest

import penstock as ps
from penstock.errors import GraphError, NoLengthError, SourceError, StateError, UsageError
from tests.dataset.functions import double, is_odd
from tests.messages import Case, anything, check_message

NUMBERS = ps.range(10)
BATCHES = NUMBERS.batch(4)


WRONG_LIMITS = ps.Limits(start_method=anything("fork"))


def refused(dataset: Any, words: str, *more: str, **arguments: Any) -> Case:
    """Return the case of a loader that a UsageError refuses."""
    return lambda: ps.Loader(dataset, **arguments), UsageError, (words, *more)


def not_built(dataset: ps.Dataset, words: str, *more: str, **arguments: Any) -> Case:
    """Return the case of a dataset that can't run with the arguments: a GraphError."""
    return lambda: ps.Loader(dataset, **arguments), GraphError, (words, *more)


class Growing:
    """A source to which records are added."""

    def __init__(self) -> None:
        self.records = [0, 1, 2]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int) -> int:
        return self.records[key]


def grown(by: int) -> object:
    """Describe a dataset, change its source, and load it."""
    source = Growing()
    loader = ps.Loader(ps.read(source).batch(2))
    source.records = source.records[: len(source.records) + by] + [9] * by
    return list(loader)


CASES: dict[str, Case] = {
    "no worker_threads": refused(
        NUMBERS, "worker_threads must be at least 1", "got worker_threads=0", limits=ps.Limits(worker_threads=0)
    ),
    "start_method fork": refused(
        NUMBERS,
        "start_method must be 'forkserver', 'spawn' or None; got start_method='fork'",
        "locks that its threads hold",
        num_workers=1,
        workers="processes",
        limits=ps.Limits(start_method=anything("fork")),
    ),
    "no dataset": refused([1, 2, 3], "dataset must be a penstock Dataset; got [1, 2, 3].", "ps.read(source)"),
    "num_workers -1": refused(NUMBERS, "num_workers must be at least 0", "got num_workers=-1", num_workers=-1),
    "num_workers 1.5": refused(NUMBERS, "num_workers must be a whole number; got num_workers=1.5", num_workers=1.5),
    "num_workers True": refused(NUMBERS, "num_workers must be a whole number", num_workers=True),
    "unknown workers": refused(
        NUMBERS,
        'workers must be "auto", "threads", "processes" or "ray", or a Loader',
        "got workers='fibers'",
        workers="fibers",
    ),
    "workers of a list": refused(NUMBERS, "workers must be", "got workers=['threads']", workers=["threads"]),
    "isolated": refused(NUMBERS, "isolated must be True or False; got isolated='yes'", isolated="yes"),
    "ordered": refused(NUMBERS, "ordered must be True or False; got ordered=None", ordered=None),
    "copy": refused(NUMBERS, "copy must be True or False; got copy='yes'", copy="yes"),
    "limits": refused(NUMBERS, "limits must be a ps.Limits(…); got limits={'timeout': 3}.", limits={"timeout": 3}),
    "no limits": refused(NUMBERS, "limits must be a ps.Limits(…); got limits={}.", limits={}),
    "worker_init": refused(
        NUMBERS,
        "worker_init must be a function that takes the worker's number, or None",
        limits=ps.Limits(worker_init=anything(3)),
    ),
    "isolated by forks": refused(
        NUMBERS,
        "start_method must be 'forkserver', 'spawn' or None; got start_method='fork'",
        isolated=True,
        limits=WRONG_LIMITS,
    ),
    "prefetch": refused(NUMBERS, "prefetch must be at least 1", "got prefetch=0", prefetch=0),
    "num_batch_workers": refused(
        NUMBERS, "num_batch_workers must be at least 1", limits=ps.Limits(num_batch_workers=0)
    ),
    **{
        f"memory {memory!r}": refused(
            NUMBERS,
            'memory must be a number of bytes above 0, or text such as "2GiB"',
            f"got memory={memory!r}",
            memory=memory,
        )
        for memory in (0, -1, "1" * 400, "lots", "2 parsecs", "", "0MB", "-1GB", True, 1.5, "1e9")
    },
    "shard of a tuple": refused(BATCHES, "shard must be a ps.Shard(rank, count); got shard=(0, 2)", shard=(0, 2)),
    "rank past the count": refused(BATCHES, "rank must be in [0, count); got rank=2, count=2", shard=ps.Shard(2, 2)),
    "rank -1": refused(BATCHES, "rank must be at least 0", "got rank=-1", shard=ps.Shard(-1, 2)),
    "no ranks": refused(BATCHES, "count must be at least 1", "got count=0", shard=ps.Shard(0, 0)),
    "rank of text": refused(BATCHES, "rank must be a whole number; got rank='0'", shard=ps.Shard(anything("0"), 2)),
    "batch that doesn't divide": refused(
        BATCHES, "a global batch must divide by the number of ranks; got batch(4) on 3 ranks", shard=ps.Shard(0, 3)
    ),
    "short last batch": refused(
        NUMBERS.batch(4),
        "the last batch of read(Range(0, 10, 1)).batch(4) has 2 rows for 4 ranks",
        'Use remainder="drop" or remainder="pad".',
        shard=ps.Shard(0, 4),
    ),
    "no batch": not_built(
        NUMBERS.shuffle(),
        "read(Range(0, 10, 1)).shuffle(): shard= cuts global batches, and there is none.",
        "Use batch(n), or shard(i, count)",
        shard=ps.Shard(0, 2),
    ),
    "uneven": not_built(
        NUMBERS.filter(is_odd).batch(2),
        "filter(is_odd).batch(2): how many batches each rank gets is only known after reading",
        "say Shard(rank, count, uneven=True)",
        shard=ps.Shard(0, 2),
    ),
    "substitute above a batch": not_built(
        BATCHES.map(double, on_error=ps.Substitute()).take(2),
        "on_error=Substitute(…) of step 'double' is above batch(), where it can't be cut into ranks",
        "Use it before batch().",
        shard=ps.Shard(0, 2),
    ),
    "globals on threads": refused(
        NUMBERS.random_map(double, globals=True),
        "step 'double' uses globals=True, which seeds generators that all threads share",
        'use workers="processes" or num_workers=0, or take the rng that random_map hands over',
        num_workers=1,
        workers="threads",
    ),
    "longer source": (
        lambda: grown(1),
        SourceError,
        ("the source changed its length from 3 to 4", "create the dataset again"),
    ),
    "shorter source": (lambda: grown(-1), SourceError, ("the source changed its length from 3 to 2",)),
    "length of a filter": (
        lambda: len(ps.Loader(NUMBERS.filter(is_odd))),
        NoLengthError,
        ("can only be read in order; its number of batches is known after reading",),
    ),
    "length of endless": (
        lambda: len(ps.Loader(NUMBERS.repeat().batch(3))),
        NoLengthError,
        ("repeats without end and has no length. Use take(n) first.",),
    ),
    "seek backwards": (lambda: ps.Loader(NUMBERS).seek(-1), UsageError, ("step must be at least 0", "got step=-1")),
    "step of nothing": (
        lambda: ps.Loader(ps.range(0).batch(2)).batch_at(0),
        StateError,
        ("this dataset has no batches; got step=0",),
    ),
    "step that passed": (
        lambda: ps.Loader(NUMBERS.filter(is_odd)).seek(3),
        StateError,
        ("can only be read in order, so only the last delivered steps are known: 0 to 0; got step=3",),
    ),
    "allow": (
        lambda: ps.Loader(NUMBERS).load_state_dict(ps.Loader(NUMBERS).state_dict(), allow={"everything"}),
        UsageError,
        ("allow takes ['order', 'source']; got ['everything']",),
    ),
    "no state": (
        lambda: ps.Loader(NUMBERS).load_state_dict({"step": 3}),
        StateError,
        ("a state must be what state_dict() returned; got {'step': 3}",),
    ),
    "state of another dataset": (
        lambda: ps.Loader(NUMBERS).load_state_dict(ps.Loader(ps.range(11, seed=1)).state_dict()),
        StateError,
        ("this state belongs to a dataset with another source and order", "allow={"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_messages(name: str) -> None:
    """The error has the right type, and states the rule, the value and the remedy."""
    check_message(CASES[name])


def test_a_short_last_batch_that_all_ranks_share_is_accepted() -> None:
    """A last batch with at least one row for each rank is divided; endless datasets have no last batch."""
    assert len(ps.Loader(NUMBERS.batch(4), shard=ps.Shard(1, 2))) == 3
    ps.Loader(NUMBERS.repeat().batch(4), shard=ps.Shard(3, 4)).close()


def test_uneven_ranks_can_be_requested() -> None:
    """With `uneven=True` each rank gets every count-th record, filtered."""
    parts = [
        [row for batch in ps.Loader(NUMBERS.filter(is_odd).batch(2), shard=shard) for row in batch.tolist()]
        for shard in (ps.Shard(0, 2, uneven=True), ps.Shard(1, 2, uneven=True))
    ]
    assert parts == [[], [1, 3, 5, 7, 9]]

"""The messages of refused arguments: each has the rule, the value and the remedy."""

from typing import Any

import penstock as ps
from penstock.errors import GraphError, NoLengthError, SourceError, StateError, UsageError
from tests.dataset.functions import double, is_odd
from tests.messages import Case, anything, case, check_message

NUMBERS = ps.range(10)
BATCHES = NUMBERS.batch(4)
SUBSTITUTED = BATCHES.map(double, on_error=ps.Substitute())


def refused(*words: str, dataset: Any = NUMBERS, **arguments: Any) -> Case:
    """Return the case of a loader that a UsageError refuses."""
    return lambda: ps.Loader(dataset, **arguments), UsageError, words


def not_built(dataset: ps.Dataset, *words: str, uneven: bool = False) -> Case:
    """Return the case of a dataset that can't be divided among ranks: a GraphError."""
    return lambda: ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=uneven)), GraphError, words


class Growing:
    """A source to which records are added."""

    def __init__(self) -> None:
        self.records = [0, 1, 2]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int) -> int:
        return self.records[key]


def repeated(number: int) -> list[int]:
    """Return a number twice."""
    return [number, number]


def grown(by: int) -> object:
    """Describe a dataset, change its source, and load it."""
    source = Growing()
    loader = ps.Loader(ps.read(source).batch(2))
    source.records = source.records[: len(source.records) + by] + [9] * by
    return list(loader)


CASES: list[Case] = [
    refused("worker_threads must be at least 1", "got worker_threads=0", limits=ps.Limits(worker_threads=0)),
    *(
        refused(
            "start_method must be 'forkserver', 'spawn' or None; got start_method='fork'",
            "locks that its threads hold",
            limits=ps.Limits(start_method=anything("fork")),
            **place,
        )
        for place in (anything({"num_workers": 1, "workers": "processes"}), {"isolated": True})
    ),
    refused("dataset must be a penstock Dataset; got [1, 2, 3].", "ps.read(source), or with ps", dataset=[1, 2, 3]),
    refused("num_workers must be at least 0", "got num_workers=-1. Pass 0 to compute in the", num_workers=-1),
    refused("num_workers must be a whole number; got num_workers=1.5", num_workers=1.5),
    refused("num_workers must be a whole number", num_workers=True),
    refused(
        'workers must be "auto", "threads", "processes" or "ray", or a Loader',
        "got workers='fibers'",
        workers="fibers",
    ),
    refused("workers must be", "got workers=['threads']", workers=["threads"]),
    refused("isolated must be True or False; got isolated='yes'", isolated="yes"),
    refused("ordered must be True or False; got ordered=None", ordered=None),
    refused("copy must be True or False; got copy='yes'", copy="yes"),
    refused("limits must be a ps.Limits(…); got limits={'timeout': 3}.", limits={"timeout": 3}),
    refused("limits must be a ps.Limits(…); got limits={}.", limits={}),
    refused(
        "worker_init must be a function that takes the worker's number, or None",
        limits=ps.Limits(worker_init=anything(3)),
    ),
    refused("prefetch must be at least 1", "got prefetch=0. Pass num_workers=0 to compute no batch ahead", prefetch=0),
    refused("num_batch_workers must be at least 1", limits=ps.Limits(num_batch_workers=0)),
    *(
        refused(
            'memory must be a number of bytes above 0, or text such as "2GiB"', f"got memory={memory!r}", memory=memory
        )
        for memory in (0, -1, "1" * 400, "lots", "2 parsecs", "", "0MB", "-1GB", True, 1.5, "1e9")
    ),
    refused("shard must be a ps.Shard(rank, count); got shard=(0, 2)", dataset=BATCHES, shard=(0, 2)),
    refused("got rank=2, count=2. Ranks count from 0", dataset=BATCHES, shard=ps.Shard(2, 2)),
    refused("rank must be at least 0", "got rank=-1", dataset=BATCHES, shard=ps.Shard(-1, 2)),
    refused("count must be at least 1", "got count=0", dataset=BATCHES, shard=ps.Shard(0, 0)),
    refused("rank must be a whole number; got rank='0'", dataset=BATCHES, shard=ps.Shard(anything("0"), 2)),
    refused(
        "a global batch must divide by the number of ranks; got batch(4) on 3 ranks. Use batch(6), or another multiple",
        dataset=BATCHES,
        shard=ps.Shard(0, 3),
    ),
    refused(
        "the last batch of read(Range(0, 10, 1)).batch(4) has 2 rows for 4 ranks",
        'Use remainder="drop" or remainder="pad".',
        dataset=BATCHES,
        shard=ps.Shard(0, 4),
    ),
    not_built(
        NUMBERS.shuffle(),
        "read(Range(0, 10, 1)).shuffle(): shard= cuts global batches, and there is none.",
        "Use batch(n), or shard(i, count)",
    ),
    not_built(
        NUMBERS.bucket(int, [4, 9], rows=4, lengths=list(range(10))).shuffle(),
        "lengths=…).shuffle(): shard= cuts global batches, and there is none.",
        'Use one number of rows= for all buckets, and remainder="drop", or shard(i, count)',
    ),
    not_built(
        NUMBERS.filter(is_odd).batch(2),
        "filter(is_odd).batch(2): how many batches each rank gets is only known after reading",
        "say Shard(rank, count, uneven=True)",
    ),
    not_built(
        ps.zip({"x": NUMBERS.flat_map(repeated), "y": NUMBERS.filter(is_odd).batch(2)}).batch(2),
        "all parts of a zip that is read in order must leave out, add and reorder elements by the same steps",
        "got {'x': 'flat_map(repeated)', 'y': 'filter(is_odd), batch(2)'}. Use these steps above zip.",
        uneven=True,
    ),
    not_built(
        ps.zip(NUMBERS.filter(is_odd).repeat(), NUMBERS.repeat()).batch(2),
        "got {'0': 'filter(is_odd)', '1': 'none'}",
    ),
    not_built(
        SUBSTITUTED.take(2),
        "on_error=Substitute(…) of step 'double' is above batch(), where it can't be cut into ranks",
        "Use it before batch().",
    ),
    not_built(SUBSTITUTED.window_shuffle(2), "of step 'double' is above batch(), where it can't be cut", uneven=True),
    refused(
        "step 'double' uses globals=True, which seeds generators that all threads share",
        'use workers="processes" or num_workers=0, or take the rng that random_map hands over',
        dataset=NUMBERS.random_map(double, globals=True),
        num_workers=1,
        workers="threads",
    ),
    case(lambda: grown(1), SourceError, "the source changed its length from 3 to 4", "create the dataset again"),
    case(lambda: grown(-1), SourceError, "the source changed its length from 3 to 2"),
    case(
        lambda: len(ps.Loader(NUMBERS.filter(is_odd))),
        NoLengthError,
        "can only be read in order",
        "Count them in a loop. Or give the filter an index: filter(…, index=path).",
    ),
    case(
        lambda: len(ps.Loader(NUMBERS.repeat().batch(3))),
        NoLengthError,
        "repeats without end and has no length. Use take(n) first.",
    ),
    case(lambda: ps.Loader(NUMBERS).seek(-1), UsageError, "step must be at least 0", "got step=-1"),
    case(lambda: ps.Loader(ps.range(0).batch(2)).batch_at(0), StateError, "this dataset has no batches; got step=0"),
    case(
        lambda: ps.Loader(NUMBERS.filter(is_odd)).seek(3),
        StateError,
        "can only be read in order, so only the last delivered steps are known: 0 to 0; got step=3",
    ),
    case(
        lambda: ps.Loader(NUMBERS).load_state_dict(ps.Loader(NUMBERS).state_dict(), allow={"everything"}),
        UsageError,
        "allow takes ['order', 'source']; got ['everything']",
    ),
    case(
        lambda: ps.Loader(NUMBERS).load_state_dict(ps.Loader(NUMBERS).state_dict(), allow="order"),
        UsageError,
        "allow must be a set of names; got 'order'. Pass allow={'order'}.",
    ),
    case(
        lambda: ps.Loader(NUMBERS).load_state_dict({"step": 3}),
        StateError,
        "a state must be what state_dict() returned; got {'step': 3}",
    ),
    case(
        lambda: ps.Loader(NUMBERS).load_state_dict(ps.Loader(ps.range(11, seed=1)).state_dict()),
        StateError,
        *("this state belongs to a dataset with another source and order", "allow={"),
    ),
]


def test_messages() -> None:
    """The error has the right type, and states the rule, the value and the remedy."""
    for each in CASES:
        check_message(each)


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


def test_ranks_take_a_zip_whose_parts_have_the_same_steps() -> None:
    """Each rank then pairs the elements of its share as one rank does; a zip within it has the steps of its parts."""
    kept, others = NUMBERS.filter(is_odd), ps.range(10, 20).filter(is_odd)
    for dataset in (ps.zip(kept, others), ps.zip(ps.zip(kept, others), kept), ps.zip(ps.stream(NUMBERS), NUMBERS)):
        pairs = list(dataset)
        of_ranks = [
            pair
            for rank in range(2)
            for batch in ps.Loader(dataset.batch(2, merge=list), shard=ps.Shard(rank, 2, uneven=True))
            for pair in batch
        ]
        assert sorted(of_ranks) == sorted(pairs)

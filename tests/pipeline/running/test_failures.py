"""A failure is raised by the read, with the stage, the item, and the user's exception as its cause."""

import asyncio
import gc
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NoReturn

import pytest

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline import SKIP, ItemDropped, Pipeline, PipelineBuilder, StageEnded
from tests.pipeline.meaning.graphs import KINDS, BrokenError, Kind, of_kind
from tests.pipeline.running.reading import PATIENCE_SECONDS, READINGS, Again, Pass, read_by_for

Order = Literal["input", "completion"]
ORDERS = pytest.mark.parametrize("order", ["input", "completion"])
CONCURRENCIES = pytest.mark.parametrize("concurrency", [1, 4])
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def broken_at(number: int, error: BaseException) -> Callable[[Any], Any]:
    """Return a function that returns its item, but raises for one."""

    def raise_at_one(item: Any) -> Any:
        if item == number:
            raise error
        return item

    return raise_at_one


def run(builder: PipelineBuilder, *, max_failures: int | Fraction = 0) -> Pass:
    """Build the pipeline, and read one pass."""
    pipeline = builder.add_sink().build(num_threads=3, max_failures=max_failures)
    try:
        return read_by_for(pipeline)
    finally:
        pipeline.stop()


class _Numbers:
    """An iterable of numbers that raises before one of them."""

    def __init__(self, fails_at: int, error: BaseException) -> None:
        self._fails_at = fails_at
        self._error = error

    def _numbers(self) -> Iterator[int]:
        for number in range(30):
            if number == self._fails_at:
                raise self._error
            yield number


class SyncNumbers(_Numbers):
    """A plain iterable."""

    def __iter__(self) -> Iterator[int]:
        return self._numbers()


class AsyncNumbers(_Numbers):
    """An async iterable."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in self._numbers():
            await asyncio.sleep(0)
            yield number


class NotIterable(_Numbers):
    """An iterable on which `iter` raises."""

    def __iter__(self) -> Iterator[int]:
        raise self._error


class NotAsyncIterable(_Numbers):
    """An async iterable on which `aiter` raises."""

    def __aiter__(self) -> AsyncIterator[int]:
        raise self._error


class BrokenAggregator:
    """An aggregator of pairs, one of whose methods raises."""

    def __init__(self, raising: str) -> None:
        self.raising = raising
        self.items: list[int] = []

    def accumulate(self, item: int) -> list[int] | None:
        """Add an item."""
        if self.raising == "accumulate" and item == 4:
            raise BrokenError(self.raising)
        self.items.append(item)
        return self._take() if len(self.items) == 2 else None

    def flush(self) -> list[int] | None:
        """Return the rest."""
        if self.raising == "flush":
            raise BrokenError(self.raising)
        return self._take() or None

    def _take(self) -> list[int]:
        items, self.items = self.items, []
        return items


@pytest.mark.parametrize("raising", ["accumulate", "flush"])
@pytest.mark.parametrize("as_factory", [False, True])
def test_an_aggregator_raises(raising: str, *, as_factory: bool) -> None:
    """An exception of an aggregator, for an item or at the end, is raised after the batches before it."""
    aggregator: Any = (lambda: BrokenAggregator(raising)) if as_factory else BrokenAggregator(raising)
    found = run(PipelineBuilder().add_source(range(5)).aggregate(aggregator))
    assert found.items == [[0, 1], [2, 3]]
    assert found.failure is not None
    assert isinstance(found.failure.__cause__, BrokenError)
    assert found.failure.__cause__.args == (raising,)


ENDS = [
    *(StopIteration(1), StopAsyncIteration(), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)),
    EOFError(),
]


@pytest.mark.parametrize("error", [BrokenError("mine"), *ENDS], ids=repr)
@OF_EACH_KIND
def test_an_op_raises(error: BaseException, kind: Kind) -> None:
    """Any exception, even one that elsewhere ends loops or programs, is its item's failure, with its frames."""
    found = run(PipelineBuilder().add_source(range(9)).pipe(of_kind(kind, broken_at(5, error)), name="broken"))
    failure = found.failure
    assert failure is not None
    assert (failure.stage, failure.item) == ("broken", "5")
    cause = failure.__cause__
    if isinstance(cause, RuntimeError):  # Python raises it for a StopIteration that leaves a generator or coroutine
        cause = cause.__cause__
    assert cause is error
    assert traceback.extract_tb(error.__traceback__)[-1].name == "raise_at_one"
    assert ("broken" in str(failure), "5" in str(failure)) == (True, True)
    assert found.items == [*range(5)]


@pytest.mark.parametrize("error", [BrokenError("mine"), *ENDS], ids=repr)
@pytest.mark.parametrize("source", [SyncNumbers, AsyncNumbers, NotIterable, NotAsyncIterable])
@pytest.mark.parametrize("continuous", [False, True])
def test_a_source_raises(
    error: BaseException, source: Callable[[int, BaseException], Any], *, continuous: bool
) -> None:
    """An exception of the source or its `iter`, even one that ends programs, is a failure after all items before it."""
    found = run(PipelineBuilder().add_source(source(5, error), continuous=continuous))
    assert found.items == ([] if source in {NotIterable, NotAsyncIterable} else [*range(5)])
    assert found.failure is not None
    assert found.failure.stage == "source"
    cause = found.failure.__cause__
    assert (cause.__cause__ if type(cause) is RuntimeError else cause) is error


@ORDERS
@CONCURRENCIES
@pytest.mark.parametrize("allowed", [0, 1, 3, 4, -1])
@pytest.mark.parametrize("of_the_stage", [False, True])
def test_a_number_of_items_may_be_dropped(order: Order, concurrency: int, allowed: int, *, of_the_stage: bool) -> None:
    """Items that fail are dropped and listed, up to the allowed number; the next failure ends the pass."""
    builder = PipelineBuilder().add_source([1, 0, 2, 0, 3, 0, 4, 0, 5])
    builder.pipe(
        lambda item: 60 // item,
        name="divide",
        output_order=order,
        concurrency=concurrency,
        max_failures=allowed if of_the_stage else None,
    )
    pipeline = builder.add_sink().build(num_threads=4, max_failures=0 if of_the_stage else allowed)
    with pipeline.auto_stop():
        found = read_by_for(pipeline)
        dropped = pipeline.dropped()
    whole = allowed in {4, -1}
    assert len(dropped) == (4 if whole else allowed)
    assert {(item.stage, item.item, type(item.error)) for item in dropped} <= {("divide", "0", ZeroDivisionError)}
    assert (found.failure is None) == whole
    if whole:
        assert sorted(found.items) == [12, 15, 20, 30, 60]
    if order == "input" or concurrency == 1:
        assert found.items == [60, 30, 20, 15, 12][: 5 if whole else allowed + 1]


def test_a_stage_with_its_own_limit_counts_by_itself() -> None:
    """Failures of a stage with its own limit don't count against the pipeline's, and the other way round."""
    builder = PipelineBuilder().add_source(range(10))
    builder.pipe(lambda item: (1 / (item % 2), item)[1], name="own", max_failures=5)
    builder.pipe(lambda item: (1 / (item % 5), item)[1], name="common")
    pipeline = builder.add_sink().build(num_threads=2, max_failures=1)
    with pipeline.auto_stop():
        assert list(pipeline) == [1, 3, 7, 9]
        assert sorted(item.stage for item in pipeline.dropped()) == ["common"] + ["own"] * 5


@pytest.mark.parametrize(
    ("count", "failing", "is_whole"),
    [
        (10, [0], True),
        (10, [0, 1], False),  # at the end
        (99, range(10), False),
        (200, range(20), True),  # all among the first hundred, before the share is checked
        (1000, range(9, 1000, 10), True),  # never more than one in ten
        (1000, [*range(99), 200], False),
        (1000, range(0, 1000, 9), False),
    ],
)
@pytest.mark.parametrize("of_the_stage", [False, True])
def test_a_share_may_be_dropped(count: int, failing: Sequence[int], *, is_whole: bool, of_the_stage: bool) -> None:
    """A share of the items may fail; it is checked from the hundredth on, and at the end."""
    share = Fraction(1, 10)
    builder = PipelineBuilder().add_source(range(count))

    def refuse(item: int) -> int:
        if item in failing:
            raise BrokenError(item)
        return item

    builder.pipe(refuse, max_failures=share if of_the_stage else None)
    found = run(builder, max_failures=0 if of_the_stage else share)
    assert (found.failure is None) == is_whole
    kept = [item for item in range(count) if item not in failing]
    assert found.items == kept[: len(found.items)]
    if is_whole:
        assert found.items == kept


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("first_fails", [False, True])
def test_items_that_a_function_never_saw_are_no_part_of_its_share(*, statistics: bool, first_fails: bool) -> None:
    """A share counts the items that reach the function, also where one call applies several functions."""

    def keep_tenths(item: int) -> Any:
        if item % 10 == 1 and first_fails:
            raise BrokenError(item)
        return SKIP if item % 10 else item // 10

    def refuse_late_thirds(item: int) -> int:
        if item >= 1000 and item % 3 == 0:
            raise BrokenError(item)
        return item

    builder = PipelineBuilder().add_source(range(15_000)).pipe(keep_tenths, max_failures=-1)
    builder.pipe(refuse_late_thirds, name="second", max_failures=Fraction(1, 10)).add_sink(1000)
    with builder.build(num_threads=1, statistics=statistics).auto_stop() as pipeline:
        found = read_by_for(pipeline)
        dropped = sum(each.stage == "second" for each in pipeline.dropped())
    assert found.failure is not None
    assert found.failure.item == "1428"  # the 143rd of 1,429
    assert first_fails or dropped == 142


def truncated() -> NoReturn:
    """Raise."""
    raise BrokenError("truncated")


class Held:
    """An argument or local of a function."""

    def __repr__(self) -> str:
        return "Held()"


@OF_EACH_KIND
@CONCURRENCIES
@pytest.mark.parametrize("chained", [False, True])
def test_a_dropped_item_keeps_no_frames(kind: Kind, concurrency: int, *, chained: bool) -> None:
    """Neither the item nor a local of a function that failed is kept; the text of the traceback is, in a note."""
    made: list[weakref.ref[Held]] = []

    def decode(data: Held) -> Held:
        image = Held()
        made.append(weakref.ref(image))
        made.append(weakref.ref(data))
        if not chained:
            truncated()
        try:
            truncated()
        except BrokenError as error:
            raise ExceptionGroup("several", [error, BrokenError("other")]) from error

    builder = PipelineBuilder().add_source(Again(lambda: (Held() for _ in range(20))))
    builder.pipe(of_kind(kind, decode), name="decode", concurrency=concurrency)
    with builder.add_sink().build(num_threads=3, max_failures=-1).auto_stop() as pipeline:
        assert list(pipeline) == []
        dropped = pipeline.dropped()
    assert len(dropped) == 20
    gc.collect()
    assert [each() for each in made] == [None] * 40
    for each in dropped:
        assert each.error.__traceback__ is None
        text = "".join(traceback.format_exception(each.error))
        assert "in decode" in text
        assert "in truncated" in text
        assert "BrokenError: truncated" in text


def test_an_observer_sees_the_traceback_of_a_dropped_item() -> None:
    """The exception still has its traceback while an observer is called."""
    seen: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, ItemDropped):
            seen.extend(frame.name for frame in traceback.extract_tb(event.error.__traceback__))

    builder = PipelineBuilder().add_source(["1", "x"]).pipe(parse).add_sink()
    with builder.build(num_threads=1, max_failures=-1, observer=observe).auto_stop() as pipeline:
        assert list(pipeline) == [1]
    assert "parse" in seen


def parse(text: str) -> int:
    """Return the number in a text."""
    return int(text)


def test_an_exception_raised_for_many_items_gets_one_note() -> None:
    """One exception object, raised for many items, gets one note."""
    error = BrokenError("always")

    def fail(_: object) -> None:
        raise error

    builder = PipelineBuilder().add_source(range(30)).pipe(fail).add_sink()
    with builder.build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
        assert list(pipeline) == []
        assert len(pipeline.dropped()) == 30
    assert len(error.__notes__) == 1


class _NoTextError(Exception):
    """An exception whose text can't be had, and which uses the name of the notes otherwise."""

    __notes__: Any = None

    def __str__(self) -> str:
        raise BrokenError("str")

    __repr__ = __str__


@pytest.mark.parametrize("allowed", [0, -1])
@OF_EACH_KIND
def test_an_exception_without_a_text(allowed: int, kind: Kind) -> None:
    """An exception whose `__str__` raises is the cause of a failure, or of a dropped item, like any other."""
    error = _NoTextError()
    builder = PipelineBuilder().add_source(range(9)).pipe(of_kind(kind, broken_at(5, error)), name="broken").add_sink()
    with builder.build(num_threads=1, max_failures=allowed).auto_stop() as pipeline:
        found = read_by_for(pipeline)
        dropped = pipeline.dropped()
    if allowed:
        assert found.items == [0, 1, 2, 3, 4, 6, 7, 8]
        assert [each.error for each in dropped] == [error]
    else:
        assert found.failure is not None
        assert str(found.failure) == "stage 'broken' failed on 5: _NoTextError, whose __str__ raises"
        assert found.failure.__cause__ is error


def test_a_task_that_passed_on_an_exception_continues() -> None:
    """A user's task that passed an exception to the stage continues to run when the item is dropped."""
    requests: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()
    served: list[int] = []

    async def serve() -> None:
        while len(served) < 5:
            number, answer = await requests.get()
            served.append(number)
            try:
                answer.set_result(2 // number)
            except ZeroDivisionError as error:
                answer.set_exception(error)

    async def numbers() -> AsyncIterator[int]:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            for number in [1, 0, 2, 0, 4]:
                yield number

    async def ask(number: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        requests.put_nowait((number, answer))
        return await answer

    builder = PipelineBuilder().add_source(numbers()).pipe(ask).add_sink()
    with builder.build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
        assert list(pipeline.get_iterator(timeout=PATIENCE_SECONDS)) == [2, 1, 0]
        assert len(pipeline.dropped()) == 2
    assert served == [1, 0, 2, 0, 4]


def refuse_thirds(item: int) -> int:
    """Raise for each third item."""
    if item % 3 == 0:
        raise BrokenError(item)
    return item


@pytest.mark.parametrize("of_the_stage", [False, True])
@pytest.mark.parametrize("read", READINGS)
def test_each_pass_counts_by_itself(read: Callable[[Pipeline], Pass], *, of_the_stage: bool) -> None:
    """Failures of one pass don't count in the next one, in each way of reading."""
    broken = [True]

    def refuse(item: int) -> int:
        return refuse_thirds(item) if broken[0] else item

    share = Fraction(1, 10)
    builder = PipelineBuilder().add_source(range(30)).pipe(refuse, max_failures=share if of_the_stage else None)
    builder.path_variants(lambda item: item % 2, [[], []])
    pipeline = builder.add_sink().build(num_threads=2, max_failures=0 if of_the_stage else share)
    with pipeline.auto_stop():
        assert read(pipeline).failure is not None
        broken[0] = False
        assert read(pipeline).failure is None


@pytest.mark.parametrize("path", [2, -1, "0", None])
@pytest.mark.parametrize("allowed", [-1, 100, Fraction(1)])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_wrong_path_is_never_dropped(path: Any, allowed: int | Fraction, kind: Kind) -> None:
    """A router whose result is not a path's number ends the pass after the items before, whatever the limit is."""
    builder = PipelineBuilder().add_source([7, 8])
    builder.path_variants(of_kind(kind, lambda item: path if item == 8 else 0), [[], []], name="route")
    found = run(builder, max_failures=allowed)
    assert found.items == [7]
    assert found.failure is not None
    assert (found.failure.stage, found.failure.item) == ("route", "8")
    assert isinstance(found.failure.__cause__, UsageError)


def broken_factory() -> Any:
    """Raise instead of making an aggregator."""
    raise BrokenError("mine")


@pytest.mark.parametrize("factory", [broken_factory, dict])
@pytest.mark.parametrize("allowed", [0, -1])
@pytest.mark.parametrize("count", [0, 3])
def test_no_aggregator_can_be_made(factory: Any, allowed: int, count: int) -> None:
    """A factory that makes no aggregator ends the pass: no item is at fault, so none is dropped for it."""
    found = run(PipelineBuilder().add_source(range(count)).aggregate(factory), max_failures=allowed)
    assert found.failure is not None
    assert isinstance(found.failure.__cause__, BrokenError if factory is broken_factory else UsageError)


def test_a_thousand_dropped_items_are_listed() -> None:
    """The first thousand dropped items are listed as values with a short text."""
    long = "x" * 10_000
    pipeline = (
        PipelineBuilder()
        .add_source([long] * 1200)
        .pipe(int, name="parse")
        .add_sink()
        .build(num_threads=2, max_failures=-1)
    )
    with pipeline.auto_stop():
        assert list(pipeline) == []
        dropped = pipeline.dropped()
    assert len(dropped) == 1000
    assert all(item.stage == "parse" and len(item.item) < 400 for item in dropped)
    assert all(isinstance(item.error, ValueError) for item in dropped)


def failing(ended: threading.Event) -> Pipeline:
    """Return a pipeline that fails, and sets an event when it has."""

    def observe(event: object) -> None:
        if isinstance(event, StageEnded) and event.stage == "sink":
            ended.set()

    builder = PipelineBuilder().add_source([1, 0]).pipe(lambda item: 1 // item)
    return builder.add_sink().build(num_threads=1, observer=observe)


def test_an_unread_failure() -> None:
    """A failure that no read has raised is raised at the end of the block of `auto_stop`."""
    ended = threading.Event()
    reached: list[int] = []
    with pytest.raises(PipelineFailure) as left, failing(ended).auto_stop() as pipeline:  # noqa: PT012 - raised behind it
        reached.append(pipeline.get_item(timeout=PATIENCE_SECONDS))
        assert ended.wait(PATIENCE_SECONDS)
    assert reached == [1]
    assert isinstance(left.value.__cause__, ZeroDivisionError)


def test_a_read_failure() -> None:
    """A failure that was read isn't raised again, nor does one replace an exception of the block itself."""
    with failing(threading.Event()).auto_stop() as pipeline:
        assert read_by_for(pipeline).failure is not None
    ended = threading.Event()
    with pytest.raises(KeyError), failing(ended).auto_stop():  # noqa: PT012 - raised in the midst
        assert ended.wait(PATIENCE_SECONDS)
        raise KeyError

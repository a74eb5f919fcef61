"""A failure is raised by the read, with the stage, the item, and the user's exception as its cause."""

import asyncio
import gc
import itertools
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any, NoReturn

import pytest

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline import SKIP, DroppedItem, ItemDropped, Pipeline, PipelineBuilder
from tests.pipeline.meaning.graphs import KINDS, BrokenError, Kind, of_kind
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, EndOfRun, Pass, items_of, over, read_by_for

OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)
OF_THE_STAGE = pytest.mark.parametrize("of_the_stage", [False, True])


def errors() -> list[BaseException]:
    """Return an exception, and some that elsewhere end loops or programs."""
    ends = StopIteration(1), StopAsyncIteration(), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)
    return [BrokenError("mine"), *ends, EOFError()]


def raising_at(number: object, error: BaseException) -> Callable[[Any], Any]:
    """Return a function that returns its item, but raises for one."""

    def raise_at_one(item: Any) -> Any:
        if item == number:
            raise error
        return item

    return raise_at_one


def refusing(failing: Sequence[int]) -> Callable[[int], int]:
    """Return a function that returns its item, but raises for some."""

    def refuse(item: int) -> int:
        if item in failing:
            raise BrokenError(item)
        return item

    return refuse


def run(builder: PipelineBuilder, max_failures: int | Fraction = 0, **how: Any) -> tuple[Pass, list[DroppedItem]]:
    """Build the pipeline, and read one pass; return it, and the dropped items."""
    pipeline = builder.add_sink().build(num_threads=3, max_failures=max_failures, **how)
    try:
        return read_by_for(pipeline), [*pipeline.dropped()]
    finally:
        pipeline.stop()


def failure_of(builder: PipelineBuilder, items: list[Any], max_failures: int | Fraction = 0) -> PipelineFailure:
    """Return the failure that ends a pass after these items."""
    found, _ = run(builder, max_failures)
    assert found.items == items
    assert found.failure is not None
    return found.failure


def cause_of(failure: PipelineFailure) -> BaseException | None:
    """Return the user's exception; Python wraps a StopIteration that leaves a generator or coroutine."""
    cause = failure.__cause__
    return cause.__cause__ if type(cause) is RuntimeError else cause


class _Numbers:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise self.error


class _AsyncNumbers(_Numbers):
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in _Numbers.__iter__(self):
            await asyncio.sleep(0)
            yield number


class _NotIterable(_Numbers):
    def __iter__(self) -> Iterator[int]:
        raise self.error


class _NotAsyncIterable(_Numbers):
    def __aiter__(self) -> AsyncIterator[int]:
        raise self.error


@pytest.mark.parametrize("source", [_Numbers, _AsyncNumbers, _NotIterable, _NotAsyncIterable])
def test_a_source_raises(source: type[_Numbers]) -> None:
    """An exception of the source or its `iter`, even one that ends programs, is a failure after all items before it."""
    items = [*range(5)] if source in {_Numbers, _AsyncNumbers} else []
    for error, continuous in zip(errors() * 2, itertools.cycle([False, True]), strict=False):
        failure = failure_of(over(source(error), continuous=continuous), items)
        assert failure.stage == "source"
        assert cause_of(failure) is error


@OF_EACH_KIND
def test_an_op_raises(kind: Kind) -> None:
    """Any exception, even one that elsewhere ends loops or programs, is its item's failure, with its frames."""
    for error in errors():
        failure = failure_of(over(range(9)).pipe(of_kind(kind, raising_at(5, error)), name="broken"), [*range(5)])
        assert (failure.stage, failure.item) == ("broken", "5")
        assert str(failure).startswith("stage 'broken' failed on 5: ")
        assert cause_of(failure) is error
        assert traceback.extract_tb(error.__traceback__)[-1].name == "raise_at_one"


class _Pairs:
    def __init__(self, raising: str) -> None:
        self.raising = raising
        self.items: list[int] = []

    def accumulate(self, item: int) -> list[int] | None:
        if self.raising == "accumulate" and item == 4:
            raise BrokenError(self.raising)
        self.items.append(item)
        return [self.items.pop(0), self.items.pop(0)] if len(self.items) == 2 else None

    def flush(self) -> list[int] | None:
        raise BrokenError(self.raising)


@pytest.mark.parametrize("raising", ["accumulate", "flush"])
def test_an_aggregator_raises(raising: str) -> None:
    """An exception of an aggregator, for an item or at the end, is raised after the batches before it."""
    given: list[Any] = [_Pairs(raising), lambda: _Pairs(raising)]
    for aggregator in given:
        failure = failure_of(over(range(5)).aggregate(aggregator), [[0, 1], [2, 3]])
        assert isinstance(failure.__cause__, BrokenError)
        assert failure.__cause__.args == (raising,)


@pytest.mark.parametrize("allowed", [0, -1])
def test_no_aggregator_can_be_made(allowed: int) -> None:
    """A factory that makes no aggregator ends the pass: no item is at fault, so none is dropped for it."""

    def broken_factory() -> Any:
        raise BrokenError("mine")

    given: list[tuple[Any, type[Exception]]] = [(broken_factory, BrokenError), (dict, UsageError)]
    for (factory, error), count in itertools.product(given, (0, 3)):
        assert isinstance(failure_of(over(range(count)).aggregate(factory), [], allowed).__cause__, error)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_wrong_path_is_never_dropped(kind: Kind) -> None:
    """A router whose result is not a path's number ends the pass after the items before, whatever the limit is."""
    limits: list[int | Fraction] = [-1, 100, Fraction(1), -1]
    for path, allowed in zip((2, -1, "0", None), limits, strict=True):
        router = of_kind(kind, {7: 0, 8: path}.__getitem__)
        failure = failure_of(over([7, 8]).path_variants(router, [[], []], name="route"), [7], allowed)
        assert (failure.stage, failure.item) == ("route", "8")
        assert isinstance(failure.__cause__, UsageError)


# Limits of failures.


def test_a_stage_with_its_own_limit_counts_by_itself() -> None:
    """Failures of a stage with its own limit don't count against the pipeline's, and the other way round."""
    builder = over(range(10)).pipe(refusing(range(0, 10, 2)), name="own", max_failures=5)
    found, dropped = run(builder.pipe(refusing([0, 5]), name="common"), 1)
    assert found == Pass([1, 3, 7, 9])
    assert sorted(item.stage for item in dropped) == ["common"] + ["own"] * 5


SHARES: list[tuple[int, Sequence[int], bool]] = [
    (10, [0], True),
    (10, [0, 1], False),  # at the end
    (99, range(10), False),
    (200, range(20), True),  # all among the first hundred, before the share is checked
    (1000, range(9, 1000, 10), True),  # never more than one in ten
    (1000, [*range(99), 200], False),
    (1000, range(0, 1000, 9), False),
]


@OF_THE_STAGE
def test_a_share_may_be_dropped(*, of_the_stage: bool) -> None:
    """A share of the items may fail; it is checked from the hundredth on, and at the end."""
    share = Fraction(1, 10)
    for count, failing, is_whole in SHARES:
        builder = over(range(count)).pipe(refusing(failing), max_failures=share if of_the_stage else None)
        found, _ = run(builder, 0 if of_the_stage else share)
        assert (found.failure is None) == is_whole
        kept = [item for item in range(count) if item not in failing]
        assert found.items == (kept if is_whole else kept[: len(found.items)])


@pytest.mark.parametrize("statistics", [False, True])
def test_items_that_a_function_never_saw_are_no_part_of_its_share(*, statistics: bool) -> None:
    """A share counts the items that reach the function, also where one call applies several functions."""

    def keep_tenths(item: int) -> Any:
        if item % 10 == 1 and not statistics:
            raise BrokenError(item)
        return SKIP if item % 10 else item // 10

    builder = over(range(3_000)).pipe(keep_tenths, max_failures=-1)
    builder.pipe(refusing(range(201, 300, 3)), name="second", max_failures=Fraction(1, 10))
    found, dropped = run(builder, statistics=statistics)
    assert found.failure is not None
    assert found.failure.item == "285"  # the 29th of 286
    assert sum(each.stage == "second" for each in dropped) == 28


# Dropped items.


class _Held:
    def __repr__(self) -> str:
        return "Held()"


def _truncated() -> NoReturn:
    raise BrokenError("truncated")


@OF_EACH_KIND
@pytest.mark.parametrize(("concurrency", "chained"), [(1, False), (4, True)])
def test_a_dropped_item_keeps_no_frames(kind: Kind, concurrency: int, *, chained: bool) -> None:
    """Neither the item nor a local of a function that failed is kept; the text of the traceback is, in a note."""
    made: list[weakref.ref[_Held]] = []

    def decode(data: _Held) -> _Held:
        image = _Held()
        made.extend((weakref.ref(image), weakref.ref(data)))
        if not chained:
            _truncated()
        try:
            _truncated()
        except BrokenError as error:
            raise ExceptionGroup("several", [error, BrokenError("other")]) from error

    builder = over(Again(lambda: (_Held() for _ in range(20)))).pipe(of_kind(kind, decode), concurrency=concurrency)
    with builder.add_sink().build(num_threads=3, max_failures=-1).auto_stop() as pipeline:
        assert list(pipeline) == []
    dropped = pipeline.dropped()  # the pipeline is kept, too
    assert len(dropped) == 20
    gc.collect()
    assert [each() for each in made] == [None] * 40
    for each in dropped:
        assert each.error.__traceback__ is None
        text = "".join(traceback.format_exception(each.error))
        assert all(words in text for words in ("in decode", "in _truncated", "BrokenError: truncated"))


def test_an_observer_sees_the_traceback_of_a_dropped_item() -> None:
    """The exception still has its traceback while an observer is called."""
    seen: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, ItemDropped):
            seen.extend(frame.name for frame in traceback.extract_tb(event.error.__traceback__))

    assert items_of(over([1, 5]).pipe(refusing([5])), max_failures=-1, observer=observe) == [1]
    assert "refuse" in seen


def test_an_exception_raised_for_many_items_gets_one_note() -> None:
    """One exception object, raised for many items, gets one note."""
    error = BrokenError("always")
    found, dropped = run(over([5] * 30).pipe(raising_at(5, error)), -1)
    assert (found, len(dropped)) == (Pass(), 30)
    assert len(error.__notes__) == 1


class _NoTextError(Exception):
    """An exception whose text can't be had, and which uses the name of the notes otherwise."""

    __notes__: Any = None

    def __str__(self) -> str:
        raise BrokenError("str")

    __repr__ = __str__


@OF_EACH_KIND
def test_an_exception_without_a_text(kind: Kind) -> None:
    """An exception whose `__str__` raises is the cause of a failure, or of a dropped item, like any other."""
    error = _NoTextError()
    op: Any = of_kind(kind, raising_at(5, error))
    found, dropped = run(over(range(9)).pipe(op), -1)
    assert found == Pass([0, 1, 2, 3, 4, 6, 7, 8])
    assert [each.error for each in dropped] == [error]
    failure = failure_of(over(range(9)).pipe(op, name="broken"), [*range(5)])
    assert str(failure) == "stage 'broken' failed on 5: _NoTextError, whose __str__ raises"
    assert failure.__cause__ is error


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

    found, dropped = run(over(numbers()).pipe(ask), -1)
    assert (found, len(dropped)) == (Pass([2, 1, 0]), 2)
    assert served == [1, 0, 2, 0, 4]


def test_a_thousand_dropped_items_are_listed() -> None:
    """The first thousand dropped items are listed as values with a short text."""
    found, dropped = run(over(["x" * 1000] * 1200).pipe(int, name="parse"), -1)
    assert (found, len(dropped)) == (Pass(), 1000)
    assert all(item.stage == "parse" and len(item.item) < 400 for item in dropped)
    assert all(isinstance(item.error, ValueError) for item in dropped)


# The items of a pass that has failed.


def _read_by_get_item(pipeline: Pipeline, _: EndOfRun) -> None:
    pipeline.start()
    while True:
        pipeline.get_item(timeout=PATIENCE_SECONDS)


def _read_by_async_for(pipeline: Pipeline, _: EndOfRun) -> None:
    async def read() -> None:
        with suppress(PipelineFailure):  # here, since the frames of `asyncio.run` keep an exception that leaves it
            async for _ in pipeline:
                pass

    asyncio.run(read())


def _leave_unread(pipeline: Pipeline, end: EndOfRun) -> None:
    with pipeline.auto_stop():
        end.wait()


READERS: list[Callable[[Pipeline, EndOfRun], object]] = [
    lambda pipeline, _: [*pipeline],
    _read_by_get_item,
    _read_by_async_for,
    _leave_unread,
]


class _Source:
    """Some items, which are watched, and a function that refuses the last ones; the source itself may refuse them."""

    def __init__(self, *, refuses: bool) -> None:
        self.made: list[weakref.ref[_Held]] = []
        self._refuses = refuses

    def __iter__(self) -> Iterator[_Held]:
        for _ in range(9):
            held = _Held()
            self.made.append(weakref.ref(held))
            yield self.same(held) if self._refuses else held

    def same(self, item: _Held) -> _Held:
        if any(item is each() for each in self.made[6:]):
            _truncated()
        return item


class _Whole:
    """An aggregator of all items that calls a function with each."""

    def __init__(self, function: Callable[[_Held], _Held]) -> None:
        self._function = function
        self._held: list[_Held] = []

    def accumulate(self, item: _Held) -> None:
        self._held.append(self._function(item))

    def flush(self) -> list[_Held]:
        return self._held


@pytest.mark.parametrize("stage", [*KINDS, "source", "aggregator"])
def test_a_failure_that_is_forgotten_keeps_no_items(stage: Any) -> None:
    """However the pass was read, its items are gone without Python's collector, while the pipeline is kept."""
    for read in READERS:
        end, source = EndOfRun(), _Source(refuses=stage == "source")
        builder = over(source)
        if stage == "aggregator":
            builder.aggregate(partial(_Whole, source.same))
        elif stage != "source":
            order: Any = "completion" if stage == "async generator" else "input"
            builder.pipe(of_kind(stage, source.same), concurrency=3, output_order=order)
        pipeline = builder.pipe(id).add_sink(9).build(num_threads=3, observer=end)
        gc.disable()
        try:
            with suppress(PipelineFailure):
                read(pipeline, end)
            pipeline.stop()
            assert [each() for each in source.made if each() is not None] == []
        finally:
            gc.enable()


class _Calm:
    """An aggregator that keeps the exception of its latest item, and goes on."""

    def __init__(self) -> None:
        self.kept: Exception | None = None
        self.has_two = threading.Event()

    def accumulate(self, item: int) -> int:
        try:
            refusing([item])(item)
        except BrokenError as error:
            self.kept = error
        if item == 1:
            self.has_two.set()
        return item

    def flush(self) -> None:
        pass


def test_a_kept_exception_ends_no_other_pipeline() -> None:
    """A pipeline that waits for its reader is well, though another one fails because of an exception kept in it."""
    calm = _Calm()

    def refuse(item: int) -> NoReturn:
        raise BrokenError(item) from calm.kept

    with over(range(6)).aggregate(lambda: calm).add_sink(1).build(num_threads=1).auto_stop() as pipeline:
        assert calm.has_two.wait(PATIENCE_SECONDS)
        assert failure_of(over(range(3)).pipe(refuse), []).item == "0"
        assert [*pipeline.get_iterator(timeout=PATIENCE_SECONDS)] == [*range(6)]


# A failure that no read has raised.


def _failing(end: EndOfRun) -> Pipeline:
    return over([1, 0]).pipe(lambda item: 1 // item).add_sink().build(num_threads=1, observer=end)


def test_an_unread_failure() -> None:
    """A failure that no read has raised is raised at the end of the block of `auto_stop`."""
    end = EndOfRun()
    reached: list[int] = []
    with pytest.raises(PipelineFailure) as left, _failing(end).auto_stop() as pipeline:  # noqa: PT012 - raised behind it
        reached.append(pipeline.get_item(timeout=PATIENCE_SECONDS))
        end.wait()
    assert reached == [1]
    assert isinstance(left.value.__cause__, ZeroDivisionError)


def test_a_read_failure() -> None:
    """A failure that was read isn't raised again, nor does one replace an exception of the block itself."""
    end = EndOfRun()
    with _failing(end).auto_stop() as pipeline:
        assert read_by_for(pipeline).failure is not None
    end = EndOfRun()
    with pytest.raises(KeyError), _failing(end).auto_stop():  # noqa: PT012 - raised in the midst
        end.wait()
        raise KeyError

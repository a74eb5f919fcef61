"""The stages of a pipeline as frozen values (op, concurrency, limits), and the checks of their arguments.

`Stage` is a closed union, so that a `match` can cover all stages. A value is checked when it is made, and starts
nothing; it can be pickled if its members can. Each check raises a UsageError that states the rule, the value and the
remedy.
"""

import copy
import functools
import reprlib
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, MISSING, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from penstock._frozen import frozen
from penstock._signatures import check_takes, name_of
from penstock.errors import UsageError
from penstock.pipeline._ops import InT, Kind, Op, OutT, kind_of

if TYPE_CHECKING:
    from concurrent.futures import Future

OutputOrder: TypeAlias = Literal["completion", "input"]
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class Submits(Protocol):
    """An object with a `submit` method that runs functions elsewhere, such as a `concurrent.futures.Executor`."""

    def submit(self, function: Callable[..., Any], /, *arguments: object) -> "Future[Any]":
        """Submit a call of the function with the arguments.

        Returns:
            The future of its result.
        """
        ...


@runtime_checkable
class WorkerProcesses(Protocol):
    """A description of worker processes for a stage, such as `ProcessExecutor`."""

    @property
    def max_workers(self) -> int:
        """The number of processes."""
        ...


StageExecutor: TypeAlias = Submits | WorkerProcesses


@frozen
class ThreadExecutor:
    """Threads for some stages of a pipeline: `pipe(op, executor=ThreadExecutor(4), concurrency=4)`.

    It is a value: the threads start and end with the pipeline. Stages with the same executor share its threads, and no
    other stage uses them. So each thread can hold an object that its initializer makes: a connection, a decoder.

    Args:
        max_workers: the number of threads, at least 1. The stage's `concurrency` should be as large.
        initializer: called in each thread as it starts, with `initargs`. If it raises, the pipeline fails.
            Default None.
        initargs: the initializer's arguments, as a tuple. Default ().

    Raises:
        UsageError: `max_workers` is less than 1.

    Example:
        >>> import threading
        >>> from penstock.pipeline import PipelineBuilder, ThreadExecutor
        >>> local = threading.local()
        >>> def connect(name):
        ...     local.connection = f"connection to {name}"
        >>> def look_up(key):
        ...     return f"{key} by {local.connection}"
        >>> executor = ThreadExecutor(2, initializer=connect, initargs=("a store",))
        >>> builder = PipelineBuilder().add_source(["key"]).pipe(look_up, executor=executor, concurrency=2).add_sink()
        >>> with builder.build(num_threads=1).auto_stop() as pipeline:
        ...     list(pipeline)
        ['key by connection to a store']
    """

    max_workers: int
    _: KW_ONLY
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        check_count("max_workers", self.max_workers)


@frozen(cached=True)
class Pipe(Generic[InT, OutT]):
    """A stage that applies an op to each item, with one result, several, or none.

    The code of the op determines its kind. A plain or async function has one result per item; a generator or async
    generator has any number; a container (an object with `__getitem__` that isn't callable) has the value at the key
    `item`. A `functools.partial`, a method or a callable object has the kind of the function that it calls. The stage
    skips a result that is SKIP; None is a result like any other.

    The values of a generator are passed on one by one, as far as the next stage has room. In a `ProcessExecutor` the
    generator runs for a few milliseconds at a time, between other calls of its process. In a `ProcessPoolExecutor`, and
    in other pools of processes, it is read to its end first, since a pool offers no way to reach the same process
    again.

    Args:
        op: the function or container.
        concurrency: how many items the op may have at once, at least 1; the same in both orders. Default 1.
        executor: where a sync op runs: a `concurrent.futures.Executor`, which the caller shuts down, a
            `ThreadExecutor` or a `ProcessExecutor`. Default None: the pipeline's own threads. An async op runs in the
            pipeline's event loop.
        name: the stage's name in errors and reports, without a "/". Default None: the op's own name.
        output_order: "completion", the default, passes on results as they are ready; "input" keeps the order of the
            items.
        max_failures: how many items may be dropped because the op failed on them; the next failure ends the pipeline.
            -1 means any number. A `Fraction` is a share of the items seen, checked from the 100th on and at the end.
            Default None: the limit of the whole pipeline.
        repeatable: whether the op may be called again with an item whose process died in it, or had not sent its
            result. The values of a generator, which must then be the same, are skipped as far as they were already
            passed on. Default False.
        max_items: how many items may wait before the stage, at least 1. Default None: the engine's choice.
        max_bytes: how many bytes may wait before the stage, at least 1. Default None: no limit in bytes.
        skip_none: whether results that are None are skipped, as SKIP is. Default False.

    Raises:
        UsageError: an argument is wrong; an async op has an executor; an async generator has "input" order; or the op
            can't be called with one argument, as far as its signature is known.

    Example:
        >>> from penstock.pipeline import Pipe
        >>> Pipe(str.upper, concurrency=4).kind, Pipe({"cat": 0, "dog": 1}).kind
        ('sync', 'lookup')
    """

    op: Op
    _: KW_ONLY
    concurrency: int = 1
    executor: StageExecutor | None = None
    name: str | None = None
    output_order: OutputOrder = "completion"
    max_failures: int | Fraction | None = None
    repeatable: bool = False
    max_items: int | None = None
    max_bytes: int | None = None
    skip_none: bool = False

    def __post_init__(self) -> None:
        asynchronous = self.kind in {"async", "async generator"}
        if self.kind != "lookup":
            check_takes(self.op, ("the item",), "an op")
        check_count("concurrency", self.concurrency)
        check_name(self.name)
        check_choice("output_order", self.output_order, ("completion", "input"))
        if self.max_failures is not None:
            check_max_failures(self.max_failures)
        for bound in ("max_items", "max_bytes"):
            if getattr(self, bound) is not None:
                check_count(bound, getattr(self, bound))
        if self.executor is not None:
            _check_executor(self.executor)
            if asynchronous:
                raise UsageError(
                    f"an async op runs in the pipeline's event loop; got executor={self.executor!r:.200} for "
                    f"{name_of(self.op)}. Omit executor, or make the op a plain function"
                )
        if self.kind == "async generator" and self.output_order == "input":
            raise UsageError(
                f"an async generator's values are passed on at once; got output_order='input' for {name_of(self.op)}. "
                "Omit output_order, or return a list and add .disaggregate()"
            )

    @functools.cached_property
    def kind(self) -> Kind:
        """The kind of the op: "sync", "async", "generator", "async generator" or "lookup"."""
        return kind_of(self.op)

    def __repr__(self) -> str:
        return f"Pipe({name_of(self.op)}{_arguments(self)})"


@runtime_checkable
class Aggregator(Protocol[ItemT_contra]):
    """An object that collects items into batches by a rule of its own.

    Example:
        >>> from penstock.pipeline import Aggregate, Aggregator
        >>> class Text:
        ...     def __init__(self, length):
        ...         self.length, self.held = length, ""
        ...
        ...     def accumulate(self, item):
        ...         self.held += item
        ...         return self.flush() if len(self.held) >= self.length else None
        ...
        ...     def flush(self):
        ...         full, self.held = self.held, ""
        ...         return full or None
        >>> isinstance(Text(4), Aggregator)
        True
        >>> text = Aggregate(Text(4)).open()
        >>> [text.accumulate(item) for item in ("ab", "cde", "f")], text.flush()
        ([None, 'abcde', None], 'f')
    """

    def accumulate(self, item: ItemT_contra, /) -> object | None:
        """Add an item.

        Returns:
            A batch if the item completes one, else None.
        """
        ...

    def flush(self) -> object | None:
        """Return the items held at the end of a pass.

        Returns:
            The last batch, or None if no item is held.
        """
        ...


@frozen
class Aggregate(Generic[InT]):
    """A stage that collects items into batches: lists of a fixed size, or the batches of an aggregator.

    Args:
        size_or_aggregator: n, at least 1, for lists of n items; or an `Aggregator`, of which each pass uses a deep
            copy; or a callable that makes an aggregator for each pass, such as its class.
        drop_last: whether the incomplete batch at the end of a pass is dropped instead of flushed. Default False.

    Raises:
        UsageError: an argument is wrong, or a method of the aggregator is async.

    Example:
        >>> from penstock.pipeline import Aggregate
        >>> batches = Aggregate(2).open()
        >>> [batches.accumulate(item) for item in "abc"], batches.flush(), batches.flush()
        ([None, ['a', 'b'], None], ['c'], None)
    """

    size_or_aggregator: int | Aggregator[Any] | Callable[[], Aggregator[Any]]
    _: KW_ONLY
    drop_last: bool = False

    def __post_init__(self) -> None:
        given: object = self.size_or_aggregator
        if isinstance(given, int):
            check_count("the size of a batch", given)
        elif not _is_aggregator(given) and not callable(given):
            raise UsageError(
                "aggregate takes a number of items, or an aggregator with accumulate(item) and flush(); "
                f"got {given!r:.200}. Pass an int, an aggregator, or its class"
            )
        elif _is_aggregator(given):
            aggregator = cast("Aggregator[Any]", given)
            check_takes(aggregator.accumulate, ("the item",), "accumulate")
            check_takes(aggregator.flush, (), "flush")
            _check_plain_methods(aggregator)
        else:
            check_takes(given, (), "an aggregator's factory")
            _check_plain_methods(given)

    def open(self) -> Aggregator[Any]:
        """Make an empty aggregator for one pass.

        Returns:
            The aggregator, which no other pass uses.

        Raises:
            UsageError: the callable returned something other than an aggregator, or one with async methods.
        """
        given = self.size_or_aggregator
        if isinstance(given, int):
            return _Lists(given)
        if _is_aggregator(given):
            return cast("Aggregator[Any]", copy.deepcopy(given))
        made: object = cast("Callable[[], object]", given)()
        if not _is_aggregator(made):
            raise UsageError(
                f"an aggregator's factory returns an object with accumulate(item) and flush(); {name_of(given)} "
                f"returned {made!r:.200}. Pass a number of items, an aggregator, or its class"
            )
        _check_plain_methods(made)
        return cast("Aggregator[Any]", made)


class _Lists:
    """Collects items into lists of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[object] = []

    def accumulate(self, item: object, /) -> list[object] | None:
        self._held.append(item)
        return self.flush() if len(self._held) == self._size else None

    def flush(self) -> list[object] | None:
        held, self._held = self._held, []
        return held or None


@frozen
class Disaggregate(Generic[OutT]):
    """A stage that takes iterables, and puts out their elements one by one.

    Example:
        >>> from penstock.pipeline import Disaggregate, PipelineBuilder
        >>> PipelineBuilder().add_source(["ab", "c"]).disaggregate().add_sink().get_config().pipes
        (Disaggregate(),)
    """


@frozen
class PathVariants(Generic[InT]):
    """A stage that sends each item along one of several paths, whose outputs merge again in order of completion.

    Args:
        router: a function, plain or async, that returns the number of an item's path, counted from 0. It is called for
            one item at a time, in their order: a plain one on the pipeline's threads, an async one in its event loop.
        paths: the stages of each path, as tuples; the items of an empty path pass unchanged.
        name: the stage's name, without a "/". Default None: the router's own name. A stage `resize` of the first path
            of `router` is `router[0]/resize`.

    Raises:
        UsageError: an argument is wrong.

    Example:
        >>> from penstock.pipeline import PathVariants, Pipe
        >>> PathVariants(str.isupper, ((Pipe(str.upper),), ()))
        PathVariants(str.isupper, 2 paths)
    """

    router: Callable[[Any], int | Awaitable[int]]
    paths: "tuple[tuple[Stage, ...], ...]"
    _: KW_ONLY
    name: str | None = None

    def __post_init__(self) -> None:
        router: object = self.router
        if not callable(router) or kind_of(router) not in {"sync", "async"}:
            raise UsageError(
                f"a router is a function, plain or async, that returns a path's number; got {router!r:.200}. "
                "Pass a function that returns the number and doesn't yield it"
            )
        check_takes(router, ("the item",), "a router")
        check_name(self.name)
        if not self.paths or not is_tuple_of(self.paths, tuple):
            raise UsageError(
                f"paths is a tuple of at least one path, each a tuple of stages; got {self.paths!r:.200}. "
                "Write a path of one stage as (Pipe(op),)"
            )
        for path in self.paths:
            check_stages(path)

    def __repr__(self) -> str:
        count = f"{len(self.paths)} path{'s' if len(self.paths) > 1 else ''}"
        return f"PathVariants({name_of(self.router)}, {count}{_arguments(self)})"


Stage: TypeAlias = Pipe | Aggregate | Disaggregate | PathVariants


@frozen
class Sink(Generic[InT]):
    """The end of a pipeline, where finished items wait for the consumer.

    Args:
        buffer_size: how many items may wait, at least 1. Default 3.
        max_bytes: how many bytes may wait, at least 1. Default None: no limit in bytes.

    Raises:
        UsageError: a number is less than 1.

    Example:
        >>> from penstock.pipeline import Sink
        >>> Sink(16)
        Sink(buffer_size=16, max_bytes=None)
    """

    buffer_size: int = 3
    _: KW_ONLY
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        check_count("buffer_size", self.buffer_size)
        if self.max_bytes is not None:
            check_count("max_bytes", self.max_bytes)


def check_stages(stages: tuple[object, ...]) -> None:
    """Check that an argument is a tuple of stages.

    Raises:
        UsageError: it isn't.
    """
    if not is_tuple_of(stages, object):
        raise UsageError(f"the stages are a tuple; got {stages!r:.200}. Write tuple(stages)")
    for stage in stages:
        if not isinstance(stage, Stage):
            raise UsageError(
                f"a stage is a Pipe, Aggregate, Disaggregate or PathVariants; got {stage!r:.200}. "
                "Wrap a function as Pipe(function)"
            )


def _check_executor(executor: object) -> None:
    is_executor = callable(getattr(executor, "submit", None)) or isinstance(executor, WorkerProcesses)
    if not is_executor or isinstance(executor, type):
        raise UsageError(
            "an executor is a concurrent.futures.Executor, a ThreadExecutor or a ProcessExecutor; "
            f"got {executor!r:.200}. Pass one, such as ThreadExecutor(4), or omit executor for the pipeline's threads"
        )


def _check_plain_methods(given: object) -> None:
    """Check that the methods of an aggregator, or of its class, are plain functions: a stage doesn't await them.

    Raises:
        UsageError: one is async.
    """
    for name in ("accumulate", "flush"):
        method: object = getattr(given, name, None)
        if callable(method) and kind_of(method) in {"async", "async generator"}:
            raise UsageError(
                f"the methods of an aggregator are plain functions; got an async {name} of {given!r:.200}. Await in an "
                "async function before it: pipe(function).aggregate(…)"
            )


def _is_aggregator(given: object) -> bool:
    return isinstance(given, Aggregator) and not isinstance(given, type)


def _arguments(stage: Pipe | PathVariants) -> str:
    """Return the arguments that differ from their defaults, as text that follows the first argument."""
    given = [
        (each.name, cast("object", getattr(stage, each.name)), cast("object", each.default)) for each in fields(stage)
    ]
    return "".join(
        f", {name}={reprlib.repr(value)}"
        for name, value, default in given
        if default is not MISSING and value != default
    )


def check_count(what: str, count: object) -> None:
    """Check that an argument is an integer of at least 1.

    Raises:
        UsageError: it isn't.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"{what} must be an integer of at least 1; got {count!r:.200}. Pass 1 or more")


def check_name(name: object) -> None:
    """Check that an argument is a stage's name, or None for the default name.

    Raises:
        UsageError: it isn't.
    """
    if name is not None and (not isinstance(name, str) or not name or "/" in name):
        raise UsageError(
            f"a stage's name is text without '/', which separates a path from its stages; got name={name!r:.200}. "
            "Use another character, or omit name"
        )


def check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    """Check that an argument is one of the choices.

    Raises:
        UsageError: it isn't.
    """
    if given not in choices:
        raise UsageError(f"{what} is one of {', '.join(map(repr, choices))}; got {given!r:.200}. Choose one of these")


def check_max_failures(max_failures: object) -> None:
    """Check that an argument is a count of failures, -1 for any number, or a fraction of the items.

    Raises:
        UsageError: it isn't.
    """
    match max_failures:
        case bool():
            pass
        case int() if max_failures >= -1:
            return
        case Fraction() if 0 <= max_failures <= 1:
            return
        case _:
            pass
    raise UsageError(
        f"max_failures is an int of at least 0, -1 for any number, or a Fraction in [0, 1]; got {max_failures!r:.200}. "
        "Write one failure in a hundred as Fraction(1, 100)"
    )


def is_tuple_of(given: object, kind: type) -> bool:
    """Return whether an argument is a tuple whose members are all instances of `kind`."""
    return isinstance(given, tuple) and all(isinstance(each, kind) for each in cast("tuple[object, ...]", given))

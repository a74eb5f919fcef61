"""A `ThreadExecutor`: threads that start with the pipeline, run an initializer, and are shared by stages."""

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline import ThreadExecutor
from tests.pipeline.meaning.graphs import of_kind
from tests.pipeline.running.reading import gate, over


def test_the_initializer_runs_once_in_each_thread() -> None:
    """The initializer runs once in each thread, before its first call; no other stage runs on these threads."""
    local = threading.local()
    prepared: list[int] = []

    def prepare(name: str) -> None:
        local.name = name
        prepared.append(threading.get_ident())

    with gate() as calls:

        def named(number: int) -> tuple[int, str, int]:
            calls.pass_through()
            return number, local.name, threading.get_ident()

        executor = ThreadExecutor(3, initializer=prepare, initargs=("mine",))
        builder = over(range(30)).pipe(lambda item: item).pipe(named, executor=executor, concurrency=3)
        builder.pipe(lambda item: (*item, threading.get_ident()))
        with builder.add_sink(30).build(num_threads=2).auto_stop() as pipeline:
            calls.wait_until(lambda now: now.inside == 3)
            calls.open()
            found = sorted(pipeline)
    assert [number for number, *_ in found] == [*range(30)]
    assert {name for _, name, *_ in found} == {"mine"}
    assert len(prepared) == 3
    assert {ident for _, _, ident, _ in found} <= {*prepared}
    assert not {ident for *_, ident in found} & {*prepared}


def test_stages_share_the_threads_of_one_value() -> None:
    """Two stages with the same executor share its thread, even generators; an equal executor has another thread."""

    def ident(item: list[int]) -> list[int]:
        return [*item, threading.get_ident()]

    def generate(item: list[int]) -> Iterator[list[int]]:
        yield ident(item)

    executor = ThreadExecutor(1)
    builder = over([[]]).pipe(ident, executor=executor).pipe(generate, executor=executor)
    builder.pipe(ident, executor=ThreadExecutor(1), name="other").add_sink()
    with builder.build(num_threads=1).auto_stop() as pipeline:
        ((first, second, third),) = pipeline
        assert first == second != third
        ((again, *_),) = pipeline  # the next pass
        assert again == first


def test_an_initializer_that_raises() -> None:
    """An initializer's exception ends the pipeline, whatever its limit of failures is, and is the cause."""

    def refuse() -> None:
        raise ValueError("no connection")

    orders: list[Any] = ["input", "completion"]
    for op, order in itertools.product((of_kind("generator", abs), abs), orders):
        executor = ThreadExecutor(2, initializer=refuse)
        builder = over(range(9)).pipe(op, executor=executor, concurrency=2, output_order=order, name="op").add_sink()
        with builder.build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
            with pytest.raises(PipelineFailure, match="no connection") as failed:
                list(pipeline)
            assert failed.value.stage == "op"
            assert isinstance(failed.value.__cause__, ValueError)
    with pytest.raises(UsageError, match="max_workers"):
        ThreadExecutor(0)


class _RefusedError(Exception):
    """An exception that is watched."""

    made: ClassVar["list[weakref.ref[_RefusedError]]"] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(weakref.ref(self))


def test_a_forgotten_exception_of_an_initializer_is_gone() -> None:
    """The threads that have ended keep it in no reference cycle, which only Python's collector would find."""

    def refuse() -> None:
        raise _RefusedError

    builder = over(range(2)).pipe(abs, executor=ThreadExecutor(1, initializer=refuse)).add_sink()
    gc.disable()
    try:
        with suppress(PipelineFailure), builder.build(num_threads=1).auto_stop() as pipeline:
            list(pipeline)
        assert [each() for each in _RefusedError.made] == [None]
    finally:
        gc.enable()

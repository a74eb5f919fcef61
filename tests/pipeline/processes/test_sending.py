"""The parts of a pipeline that is sent to a process of its own: executors, made again there, and shared objects."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.pipeline import Merge, Pipe, PipelineBuilder, ThreadExecutor, run_in_subprocess

_local = threading.local()


def prepare(name: str) -> None:
    """Set an attribute of the thread, as an initializer."""
    _local.name = name


def where(item: list[Any]) -> list[Any]:
    """Return the item with the process, the thread, and the attribute that an initializer has set."""
    return [*item, (os.getpid(), threading.get_ident(), getattr(_local, "name", None))]


def first_path(_: object) -> int:
    """Return the number of the first path, as a router."""
    return 0


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ThreadExecutor])
def test_threads(make: Callable[..., Any]) -> None:
    """Stages that share a pool of threads share one thread in the process, prepared by the pool's initializer."""
    executor = make(1, initializer=prepare, initargs=("mine",))
    inner = PipelineBuilder().add_source([[]]).pipe(where, executor=executor).add_sink().get_config()
    builder = PipelineBuilder().add_source(Merge((inner,))).pipe(where, executor=executor)
    builder.path_variants(first_path, [[Pipe(where, executor=executor)]]).add_sink()
    with run_in_subprocess(builder.get_config(), num_threads=1).auto_stop() as pipeline:
        ((first, second, third),) = pipeline
    assert first == second == third
    assert first[0] != os.getpid()
    assert first[2] == "mine"
    if isinstance(executor, Executor):
        executor.shutdown()


def test_processes() -> None:
    """Stages with a pool of processes run in processes beside the pipeline's own, in the same number, initialized."""
    with ProcessPoolExecutor(1, initializer=prepare, initargs=("mine",)) as executor:
        builder = PipelineBuilder().add_source([[]]).pipe(where, executor=executor).pipe(where, executor=executor)
        with run_in_subprocess(builder.pipe(where).add_sink().get_config(), num_threads=1).auto_stop() as pipeline:
            ((first, second, own),) = pipeline
    assert first[0] == second[0] != own[0]
    assert first[2] == "mine"


class _Shares:
    """Records an item in each kind of object that multiprocessing shares."""

    def __init__(self, *shared: Any) -> None:
        self._shared = shared

    def __call__(self, item: int) -> int:
        value, array, raw, queue, event, sender = self._shared
        with value.get_lock():
            value.value += item
        array[0] = raw.value = item
        queue.put(item)
        event.set()
        sender.send(item)
        return item


class Settings(dict[str, int]):
    """A dict whose items are attributes, and whose missing attributes are KeyErrors."""

    def __getattr__(self, name: str) -> int:
        return self[name]


def test_objects_with_attributes_of_their_own() -> None:
    """An object is sent whatever its `__getattr__` raises, as pickle sends it."""
    config = PipelineBuilder().add_source([Settings(size=3)]).add_sink().get_config()
    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
        assert [dict(each) for each in pipeline] == [{"size": 3}]


def test_objects_of_multiprocessing() -> None:
    """A value, an array, a queue, an event and a pipe are the same objects on both sides, after a restart too."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    value, array, raw = context.Value("i"), context.Array("i", 2), context.RawValue("i")
    queue, event = context.SimpleQueue(), context.Event()
    op = _Shares(value, array, raw, queue, event, sender)
    pipeline = run_in_subprocess(PipelineBuilder().add_source([3]).pipe(op).add_sink().get_config(), num_threads=1)
    for runs in (1, 2):
        assert list(pipeline) == [3]
        pipeline.stop()
        assert (value.value, array[0], raw.value, event.is_set()) == (3 * runs, 3, 3, True)
        assert (queue.get(), receiver.recv()) == (3, 3)
    queue.close()
    for end in (receiver, sender):
        end.close()


def test_a_lock_for_forked_processes() -> None:
    """An object for forked processes only is refused, with the remedy."""
    lock = multiprocessing.get_context("fork").Lock()
    config = PipelineBuilder().add_source([lock]).add_sink().get_config()
    with pytest.raises(UsageError, match=r"get_context\(\"spawn\"\)"):
        list(run_in_subprocess(config, num_threads=1))

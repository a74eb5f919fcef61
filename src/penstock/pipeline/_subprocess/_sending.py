"""Pickling of a pipeline's description for the process that runs it.

Executors of the standard library stay with the process that made them. Instead of each, the pipeline's process gets an
executor of ours with as many workers and the same initializer, which starts and ends with the pipeline: processes of a
`ProcessPoolExecutor` would outlive a pipeline's process that is killed. Stages that share an executor share its
successor.

Objects of `multiprocessing`, such as `Value`, `Lock`, `Queue` and `Event`, can only be given to a process as it is
started. So a pickle holds their numbers, and the process gets the objects themselves beside it.
"""

import dataclasses
import io
import multiprocessing.connection
import multiprocessing.queues
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Final, cast

from penstock.errors import UsageError
from penstock.pipeline._config import Merge, PipelineConfig
from penstock.pipeline._processes import ProcessExecutor
from penstock.pipeline._stages import PathVariants, Pipe, Stage, StageExecutor, ThreadExecutor

_INHERITED: Final[tuple[type[object], ...]] = (
    multiprocessing.connection.Connection,
    multiprocessing.queues.Queue,
    multiprocessing.queues.SimpleQueue,
    multiprocessing.sharedctypes.SynchronizedBase,
    multiprocessing.synchronize.Barrier,
    multiprocessing.synchronize.Condition,
    multiprocessing.synchronize.Event,
    multiprocessing.synchronize.SemLock,
)


class Sending:
    """Pickles the arguments with which one process is started.

    Attributes:
        inherited: the objects that the pickles refer to by numbers.
    """

    def __init__(self) -> None:
        self.inherited: list[object] = []

    def dump(self, value: object) -> bytes:
        """Return the pickle of a value; exceptions of pickling pass through."""
        file = io.BytesIO()
        _Pickler(file, self.inherited).dump(value)
        return file.getvalue()


def load(pickled: bytes, inherited: Sequence[object]) -> object:
    """Return the value of a pickle, in the process that inherited the objects."""
    return cast("object", _Unpickler(io.BytesIO(pickled), inherited).load())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, inherited: list[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._inherited = inherited

    def persistent_id(self, obj: object) -> int | None:
        if not _is_inherited(obj):
            return None
        if any(getattr(lock, "_is_fork_ctx", False) for lock in _locks(obj)):
            raise UsageError(
                f"locks that multiprocessing makes for forked processes can't go to a clean one; got {obj!r:.200}. "
                'Make it of another context, as multiprocessing.get_context("spawn").Value("i"), or with lock=False'
            )
        for number, known in enumerate(self._inherited):
            if known is obj:
                return number
        self._inherited.append(obj)
        return len(self._inherited) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, inherited: Sequence[object]) -> None:
        super().__init__(file)
        self._inherited = inherited

    def persistent_load(self, pid: object) -> object:
        return self._inherited[cast("int", pid)]


def _is_inherited(value: object) -> bool:
    # A `RawValue` or `RawArray` is an object of ctypes over multiprocessing's memory.
    return isinstance(value, _INHERITED) or type(getattr(value, "_wrapper", None)).__module__ == "multiprocessing.heap"


def _locks(value: object) -> Iterator[object]:
    """Yield the locks in an object of `multiprocessing`."""
    if isinstance(value, multiprocessing.synchronize.SemLock):
        yield value
    elif isinstance(value, _INHERITED):
        for each in cast("dict[str, object]", vars(value)).values():
            yield from _locks(each)


class Successors:
    """Replaces the executors of a config by those that start with the pipeline."""

    def __init__(self) -> None:
        self._by_id: dict[int, StageExecutor] = {}

    def config(self, config: PipelineConfig) -> PipelineConfig:
        """Return the config with the executors' successors."""
        source = config.source
        if isinstance(source, Merge):
            source = dataclasses.replace(source, pipelines=tuple(map(self.config, source.pipelines)))
        return dataclasses.replace(config, source=source, pipes=self._stages(config.pipes))

    def _stages(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(map(self._stage, stages))

    def _stage(self, stage: Stage) -> Stage:
        match stage:
            case Pipe(executor=ThreadPoolExecutor() | ProcessPoolExecutor() as pool):
                return dataclasses.replace(stage, executor=self._by_id.setdefault(id(pool), _successor(pool)))
            case PathVariants(paths=paths):
                return dataclasses.replace(stage, paths=tuple(map(self._stages, paths)))
            case _:
                return stage


def _successor(pool: ThreadPoolExecutor | ProcessPoolExecutor) -> StageExecutor:
    workers = cast("int", _attribute(pool, "_max_workers"))
    if type(pool) is ThreadPoolExecutor:
        context = cast("Callable[[], object] | None", _attribute(pool, "_create_worker_context"))  # from Python 3.14 on
        made, prefix = (pool, "_") if context is None else (context(), "")
        initializer, initargs = _attribute(made, f"{prefix}initializer"), _attribute(made, f"{prefix}initargs")
        return ThreadExecutor(workers, initializer=cast("Any", initializer), initargs=cast("Any", initargs))
    if type(pool) is ProcessPoolExecutor:
        method = cast("Any", _attribute(pool, "_mp_context")).get_start_method()
        return ProcessExecutor(
            workers,
            start_method="spawn" if method == "spawn" else None,  # none of ours is forked from this process
            initializer=cast("Any", _attribute(pool, "_initializer")),
            initargs=cast("Any", _attribute(pool, "_initargs")),
        )
    return cast("StageExecutor", pool)  # of a class with ways of its own, which pickling will name


def _attribute(value: object, name: str) -> object:
    return cast("object", getattr(value, name, None))

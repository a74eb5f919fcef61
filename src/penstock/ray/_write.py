"""`write` on the hosts of a Ray cluster: a task for each shard.

A shard is a pure function of its number, so Ray may run its task on any host, and again after it lost one. The folder
has all progress: a task whose shard exists only computes the checksum, and a program that was killed continues when it
is started again, with Ray or without. So there is nothing to coordinate; the calling process writes the description
before the tasks, and the manifest after them.
"""

import importlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._caught import CaughtFailure
from penstock._progress import Progress, counted
from penstock._writing import Entry, Shards, Written, remove_leftovers, write_by
from penstock.errors import WorkerError
from penstock.ray._sent import Failed, Sent, checked_options, failed, received, send

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock._dataset import Dataset

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_TASKS: Final = 2_000  # that Ray holds at once; `ray.wait` looks at each of them
_OPTIONS: Final = {"num_cpus": 1, "max_retries": 10}  # hosts that are lost are common where they can be preempted
_ENDING_SECONDS: Final = 10.0  # for running tasks, after they were cancelled


def write(
    dataset: "Dataset[Any]",
    path: str | os.PathLike[str],
    format: str = "arrow",
    *,
    shard_bytes: int | str = "256MB",
    options: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Written:
    """Write the elements of epoch 0 to files as `penstock.write` does, on all hosts of a Ray cluster.

    Each shard is a task of Ray. The files are those that `penstock.write` writes, byte for byte. Ray runs the task of a
    lost host or a killed process again. A call that was killed is repeated, here or as `penstock.write`, and continues
    with the shards that are missing.

    It uses the cluster that `ray.init` has connected to. Without that, Ray looks for one by its own rules, and
    otherwise starts one on this host. All hosts need Penstock in the same version, the modules of the dataset, and its
    files. `ray.init(runtime_env={"working_dir": "."})` sends the modules.

    Args:
        dataset: as for `penstock.write`.
        path: a folder that all hosts share, under the same path.
        format: as for `penstock.write`.
        shard_bytes: as for `penstock.write`. Also the amount of work that is repeated if a host is lost.
        options: options of the tasks, as `ray.remote` takes them, such as `{"num_cpus": 4}` for functions with threads
            of their own, or `{"resources": {"decoders": 1}}` to choose hosts. Default: one processor for each task, and
            10 retries.
        progress: show progress on stderr, if that is a terminal or a notebook, and the work takes more than 0.5 s.

    Returns:
        The state of the folder after the call.

    Raises:
        GraphError: the dataset has no positions, or no end.
        UsageError: as for `penstock.write`; or a host doesn't see the folder, has another version of Penstock, or
            another dataset, for example since one of its modules differs.
        WorkerError: Ray has lost the task of a shard more often than it is retried.
        MissingDependencyError: pyarrow isn't installed.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> import penstock.ray
        >>> numbers = ps.range(10, seed=7).shuffle().map(lambda number: {"number": number})
        >>> with tempfile.TemporaryDirectory() as shared:
        ...     written = penstock.ray.write(numbers, shared, "jsonl")
        ...     again = ps.write(numbers, shared, "jsonl")
        >>> written.complete, written.new, again.new
        (True, 1, 0)
    """
    writers = partial(_written_by_tasks, {**_OPTIONS, **checked_options(options)})
    return write_by(writers, dataset, path, format, shard_bytes=shard_bytes, progress=progress)


def _written_by_tasks(
    options: Mapping[str, Any], shards: Shards, numbers: Sequence[int], *, label: str, progress: bool
) -> Iterator[Entry]:
    """Yield the entries of shards that tasks write, as soon as each is there."""
    if not numbers:
        return
    sent = send(shards, shards.dataset.node, asked="penstock.ray.write")
    task = ray.remote(**options)(_write_shard)
    remaining = iter(numbers)
    running: dict[Any, int] = {}  # the shards by the references of their results
    elements = sum(len(shards.positions_of(number)) for number in numbers)
    try:
        with Progress(label, elements, enabled=progress, amount=counted) as line:
            while True:
                for number in itertools.islice(remaining, _TASKS - len(running)):
                    running[task.remote(*sent, number)] = number
                if not running:
                    return
                ended, _ = ray.wait(list(running), num_returns=1)
                for result in ended:
                    number = running.pop(result)
                    yield _entry(shards, number, result)
                    line.advance(len(shards.positions_of(number)))
    finally:
        _cancel(list(running))


def _write_shard(sent: Sent, stored: "NDArray[np.uint8]", number: int) -> Entry | Failed:
    """Write a shard, as a task."""
    with CaughtFailure() as caught:
        shards = cast("Shards", received(sent, stored))
        shards.need_description()
        remove_leftovers(shards.folder)  # of tasks that were killed on this host
        return shards(number)
    return failed(caught.taken())


def _entry(shards: Shards, number: int, result: object) -> Entry:
    """Return the entry that a task returned.

    Raises:
        WorkerError: Ray has lost the task.
    """
    try:
        entry: Entry | Failed = ray.get(result)
    except ray.exceptions.RayError as error:
        positions = shards.positions_of(number)
        raise WorkerError(
            f"Ray has no result of shard {number}, of the elements at positions [{positions.start}, "
            f"{positions.stop}), after all retries; another call of write continues with the missing shards: "
            f"{str(error).strip()}"
        ) from error
    if isinstance(entry, Failed):
        raise entry.unpacked()
    return entry


def _cancel(running: list[object]) -> None:
    """End the tasks that run, after an error or Ctrl-C, so that none writes when the call has returned."""
    if not running:
        return
    for result in running:
        ray.cancel(result)
    ray.wait(running, num_returns=len(running), timeout=_ENDING_SECONDS, fetch_local=False)

"""The plan of a loader, as a value: the dataset's program, its place and workers, its rank, and its limits."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from penstock._frozen import frozen
from penstock._graph import Node, Remainder, length
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._plan._program import Batches, Streaming


Place: TypeAlias = Literal["inline", "threads", "processes"]
StartMethod: TypeAlias = Literal["spawn", "forkserver"]


@frozen
class Limits:
    """The limits of a loader's resources, where the defaults don't fit.

    Args:
        num_batch_workers: how many batches may be merged at once by a custom merge function or a step after `batch`;
            None is the loader's `prefetch`.
        worker_init: called once in each worker before its first task, with the number of the worker. Work that failed
            in a worker is computed again in the consumer's thread, so that the exception is raised there. Before that,
            `worker_init(num_workers)` is called in this thread, too. Elements of a stream that failed in a thread are
            not computed again, since they may not come again.
        read_ahead: how many records of async sources may be in flight or wait for a worker, at least 1; default 64.
            This is also the number of concurrent requests, where each is for one record. Worker processes share it;
            each has at least one, and their elements, which wait in memory, may take 256 MB: of larger elements fewer
            are requested ahead. Without workers nothing is read ahead.
        start_method: how worker processes are started. None, the default, is "forkserver" on Linux: one clean process
            for the program imports the modules that the workers need, and forks workers in milliseconds. A worker has
            the program's current import paths, working directory and environment variables, but the umask, priority,
            resource limits and cores that the program had when its first worker was started. "spawn" starts a new
            Python for each worker, and works everywhere.
        worker_threads: how many threads BLAS, OpenCV and torch have in each worker process, at least 1. The default is
            1, since the workers share the cores already. None changes nothing. A variable that the user has set, such
            as OMP_NUM_THREADS, takes precedence. With "spawn", BLAS libraries that the main module imports keep their
            own number.
        timeout: how many seconds a worker may be at the same work; None, the default, means no limit. A process that
            exceeds it is killed, its Python stack is logged, and other processes try the block again, row by row. So a
            timeout that is enough for one row or one merge makes nothing fail. Work that hangs a third time raises a
            WorkerError with the stack, and so does a `worker_init` that hangs twice. A thread can't be killed: if the
            consumer has waited so long for one block of rows (up to all rows of a batch, one after the other) or one
            merge in a thread, it raises a WorkerError that names the step, positions, keys and files, with the stack of
            the thread. The loader stays usable, but this thread computes nothing else until its function returns: the
            next call waits for the same batch again, and `seek` continues after it. In a dataset that is read in order,
            the work of the reading thread for one batch counts, too. `async for` waits for threads without a timeout.
            A process of a pool that is at one batch for longer ends itself, with its stack in Ray's log.
            Without workers a timeout is refused, because nothing can watch the calling thread.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8).batch(4), num_workers=2, limits=ps.Limits(num_batch_workers=1))
        >>> loader.close()
    """

    num_batch_workers: int | None = None
    worker_init: Callable[[int], object] | None = None
    read_ahead: int = 64
    start_method: StartMethod | None = None
    worker_threads: int | None = 1
    timeout: float | None = None


@runtime_checkable
class TorchGroup(Protocol):
    """A `torch.distributed.ProcessGroup`, as far as it is used here."""

    def rank(self) -> int:
        """Return the rank of this process in the group."""
        ...

    def size(self) -> int:
        """Return the number of processes in the group."""
        ...


@runtime_checkable
class TorchMesh(Protocol):
    """A `torch.distributed.DeviceMesh`, as far as it is used here."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        ...

    def get_local_rank(self) -> int:
        """Return the rank of this process in a mesh of one dimension."""
        ...

    def size(self) -> int:
        """Return the number of ranks in the mesh."""
        ...


class JaxDevice(Protocol):
    """A `jax.Device`, as far as it is used here."""

    @property
    def process_index(self) -> int:
        """The process that has the device."""
        ...


class JaxSharding(Protocol):
    """A `jax.sharding.Sharding`, as far as it is used here."""

    @property
    def addressable_devices(self) -> Collection[JaxDevice]:
        """The devices of this process."""
        ...

    def devices_indices_map(self, global_shape: tuple[int, ...], /) -> Mapping[JaxDevice, tuple[slice, ...] | None]:
        """Return the part of an array that each device holds."""
        ...


@frozen
class Shard:
    """One rank's part of the data: of every global batch of n rows, rows [rank·n/count, (rank+1)·n/count).

    Args:
        rank: the part, in [0, count).
        count: the number of parts.
        uneven: accept that ranks may end on different steps. This is needed for datasets whose length is only known
            after reading, such as filtered ones, unless `limit` or `repeat()` makes all ranks end together. In such
            datasets each rank takes every count-th record.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.range(8).batch(4)
        >>> [batch.tolist() for batch in ps.Loader(dataset, shard=ps.Shard(1, 2))]
        [[2, 3], [6, 7]]
    """

    rank: int
    count: int
    uneven: bool = False

    @classmethod
    def from_torch(cls, group: TorchMesh | TorchGroup | None = None, *, uneven: bool = False) -> "Shard":
        """Return the part of this process among those that share the data in a job of `torch.distributed`.

        Ranks that share a replica of the model must get equal rows. So give the mesh or the group of the ranks that get
        different data, such as `mesh["dp"]`, and not the mesh of all ranks.

        Args:
            group: a `DeviceMesh` of one dimension, or a `ProcessGroup`; None for all processes of the job.
            uneven: as in the class.

        Raises:
            UsageError: `group` is none of these, or this process is not a member.

        Example:
            >>> import penstock as ps
            >>> class Group:  # a torch.distributed.ProcessGroup has these
            ...     rank, size = lambda self: 1, lambda self: 4
            >>> ps.Shard.from_torch(Group())
            Shard(rank=1, count=4, uneven=False)
        """
        return cls(*rank_in_torch(group), uneven)

    @classmethod
    def from_ray(cls, *, uneven: bool = False) -> "Shard":
        """Return the part of this worker among all workers of a job of Ray Train.

        Call it in the function that each worker runs. After Ray changed the number of workers, the function runs again,
        and each worker gets its part among those that there are then.

        Args:
            uneven: as in the class.

        Raises:
            UsageError: this process isn't a worker of Ray Train.

        Example:
            >>> import penstock as ps
            >>> def train():  # ray.train.torch.TorchTrainer(train, …) calls it in each worker
            ...     loader = ps.torch.Loader(dataset, shard=ps.Shard.from_ray())
        """
        return cls(*rank_in_ray(), uneven)

    @classmethod
    def from_jax(cls, sharding: JaxSharding, shape: Sequence[int], *, uneven: bool = False) -> "Shard":
        """Return the part of a global batch's rows that the devices of this process hold under a sharding of JAX.

        Processes whose devices hold the same rows, since they share a replica of the model, get the same part.

        Args:
            sharding: the `jax.sharding.Sharding` of the batch.
            shape: the shape of a leaf of the global batch; rows are the first axis.
            uneven: as in the class.

        Raises:
            UsageError: the rows of a process aren't consecutive, or the parts aren't equal; or an argument is wrong.

        Example:
            >>> import penstock as ps
            >>> class Device:  # a jax.Device and a jax.sharding.Sharding have these attributes
            ...     def __init__(self, process_index):
            ...         self.process_index = process_index
            >>> class Sharding:
            ...     devices = [Device(0), Device(0), Device(1), Device(1)]
            ...     addressable_devices = devices[2:]
            ...
            ...     def devices_indices_map(self, shape):
            ...         return {device: (slice(2 * i, 2 * i + 2),) for i, device in enumerate(self.devices)}
            >>> ps.Shard.from_jax(Sharding(), (8,))
            Shard(rank=1, count=2, uneven=False)
        """
        return cls(*rank_in_jax(sharding, shape), uneven)


@frozen
class Plan:
    """A dataset, and all decisions about how it runs."""

    node: Node
    program: "Batches | Streaming"
    """Derived from the dataset: its rows or inputs, and the work for workers."""
    place: Place
    num_workers: int
    shard: Shard
    prefetch: int
    memory: int | None
    copy: bool
    limits: Limits
    ordered: bool = True
    """Whether batches are delivered in order; otherwise as they become ready."""
    isolated: bool = False
    """Whether a helper process runs everything, including the workers."""
    remote: str = ""
    """The processes of other hosts that compute all batches; empty if none do."""
    why: str = ""
    """The reason for these workers, if the loader chose them."""

    @property
    def is_indexed(self) -> bool:
        """Whether the dataset has positions."""
        return self.program.is_indexed

    @property
    def batches(self) -> "Batches":
        """The program of an indexable dataset.

        Raises:
            InternalError: the dataset is read in order.
        """
        return self.program.batches

    @property
    def streaming(self) -> "Streaming":
        """The program of a dataset that is read in order.

        Raises:
            InternalError: the dataset is indexable.
        """
        return self.program.streaming

    @property
    def is_computed_here(self) -> bool:
        """Whether the consumer's thread computes each batch when it is requested."""
        return self.place == "inline" and not self.isolated and not self.remote

    @property
    def worker_count(self) -> int:
        """The number of workers, on whatever hosts; 0 if the consumer computes. A helper process without any is one."""
        return int(self.isolated) if self.place == "inline" and not self.remote else self.num_workers

    @property
    def workers_text(self) -> str:
        """A description of the workers."""
        if self.remote:
            return self.remote
        where = " in a helper process" if self.isolated else ""
        if self.place == "inline":
            return f"inline{where}"
        one = "thread" if self.place == "threads" else "process"
        return (f"1 {one}" if self.num_workers == 1 else f"{self.num_workers} {self.place}") + where

    @property
    def length(self) -> int:
        """The number of elements in an epoch of an indexable dataset, after its outermost step."""
        return length(self.node) or 0

    @property
    def must_fill(self) -> bool:
        """Whether it is an error if a rank runs out of data before the limit on which all ranks end."""
        return self.shard.count > 1 and not self.shard.uneven

    @property
    def batch_size(self) -> int:
        """The number of elements in a global batch; 1 for a dataset without batches."""
        batch = self.program.batch
        return 1 if batch is None else max(batch.value.rows)

    @property
    def remainder(self) -> Remainder:
        """The rule for a last batch that isn't full: keep, drop or pad."""
        batch = self.program.batch
        return "keep" if batch is None else batch.value.remainder


def rank_in_torch(group: TorchMesh | TorchGroup | None) -> tuple[int, int]:
    """Return (rank, count) of this process in a mesh of one dimension, or a group; None for all processes."""
    if isinstance(group, TorchMesh):
        if group.ndim != 1:
            raise UsageError(
                "Shard.from_torch takes a mesh of one dimension, the one whose ranks get different data; got "
                f"{group.ndim}. Name it, as in mesh['dp'], or give Shard(rank, count)."
            )
        rank, count = group.get_local_rank(), group.size()
    elif isinstance(group, TorchGroup):
        rank, count = group.rank(), group.size()
    elif group is None:
        rank, count = _rank_in_world()
    else:
        raise UsageError(
            "Shard.from_torch takes a DeviceMesh or a ProcessGroup that this process is a member of; got "
            f"{group!r}. Give Shard(rank, count) instead."
        )
    if not 0 <= rank < count:
        raise UsageError(f"this process is no member of {group!r}. Give the group that it shares the data with.")
    return rank, count


def _rank_in_world() -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError(
            "Shard.from_torch() without a group uses torch.distributed, which isn't initialised here. Call "
            "init_process_group first, or give Shard(rank, count)."
        )
    return distributed.get_rank(), distributed.get_world_size()


def rank_in_ray() -> tuple[int, int]:
    """Return (rank, count) of this process among the workers of its job of Ray Train."""
    train = sys.modules.get("ray.train")
    try:
        context = None if train is None else train.get_context()
        rank, count = (None, None) if context is None else (context.get_world_rank(), context.get_world_size())
    except RuntimeError:  # Ray's error in any other process
        rank = count = None
    if rank is None or count is None:
        raise UsageError(
            "Shard.from_ray() asks Ray Train for this worker's rank, and this process isn't one of its workers. Call "
            "it in the function that you give to the trainer, or give Shard(rank, count)."
        )
    return rank, count


def rank_in_jax(sharding: JaxSharding, shape: Sequence[int]) -> tuple[int, int]:
    """Return (rank, count) of the part of an array's rows that the devices of this process hold."""
    try:
        sizes = tuple(shape)
        rows = rows_of_processes(sharding, sizes) if sizes else {}
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise UsageError(
            "Shard.from_jax takes a jax.sharding.Sharding and the shape of a global batch that it can cut; got "
            f"{sharding!r} and {shape!r} ({type(error).__name__}: {error})"
        ) from error
    if not sizes:
        raise UsageError("Shard.from_jax takes the shape of a global batch, with its rows as the first axis; got ()")
    own = {device.process_index for device in sharding.addressable_devices}
    if len(own) != 1:
        raise UsageError(f"Shard.from_jax takes a sharding that includes devices of this process; got {sharding}")
    parts = sorted(set(rows.values()))
    (process,) = own
    rank, count = parts.index(rows[process]), len(parts)
    expected = [(sizes[0] * part // count, sizes[0] * (part + 1) // count) for part in range(count)]
    if [list(part) for part in parts] != [[span] for span in expected]:
        held = "; ".join(f"process {process}: {_text(spans)}" for process, spans in sorted(rows.items()))
        raise UsageError(
            f"the {sizes[0]} rows of a global batch must be cut into equal parts, one for each process or for several "
            f"that hold the same rows; this sharding has it otherwise ({held}). Order the mesh so that the devices of "
            "a process follow each other along the axis of the batch."
        )
    return rank, count


def rows_of_processes(sharding: JaxSharding, shape: Sequence[int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return the rows that the devices of each process hold, as spans [start, stop)."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        whole = index[0] if index else slice(None)
        start, stop, _ = whole.indices(shape[0])
        spans.setdefault(device.process_index, []).append((start, stop))
    return {process: _joined(held) for process, held in spans.items()}


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return tuple(joined)


def _text(spans: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"[{start}, {stop})" for start, stop in spans)

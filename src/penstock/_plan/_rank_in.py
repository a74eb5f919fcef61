"""The rank of this process, read from an object of torch or JAX that describes the group of processes.

Neither library is imported: the object has all that is needed.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from penstock.errors import UsageError


@runtime_checkable
class TorchGroup(Protocol):
    """A `torch.distributed.ProcessGroup`, as far as it is used here."""

    def rank(self) -> int:
        """Return this process's place in the group."""
        ...

    def size(self) -> int:
        """Return how many processes the group has."""
        ...


@runtime_checkable
class TorchMesh(Protocol):
    """A `torch.distributed.DeviceMesh`, as far as it is used here."""

    @property
    def ndim(self) -> int:
        """How many dimensions the mesh has."""
        ...

    def get_local_rank(self) -> int:
        """Return this process's place in a mesh of one dimension."""
        ...

    def size(self) -> int:
        """Return how many places the mesh has."""
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
        """This process's devices."""
        ...

    def devices_indices_map(self, global_shape: tuple[int, ...], /) -> Mapping[JaxDevice, tuple[slice, ...] | None]:
        """Return which part of an array each device holds."""
        ...


def rank_in_torch(group: TorchMesh | TorchGroup | None) -> tuple[int, int]:
    """Return (rank, count) of this process in a mesh of one dimension, or a group; None for all processes."""
    if isinstance(group, TorchMesh):
        if group.ndim != 1:
            raise UsageError(
                "Shard.from_torch takes a mesh of one dimension, the one over which data differs; got "
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
            "Shard.from_torch() without a group asks torch.distributed, which isn't initialised here. Call "
            "init_process_group first, or give Shard(rank, count)."
        )
    return distributed.get_rank(), distributed.get_world_size()


def rank_in_jax(sharding: JaxSharding, shape: Sequence[int]) -> tuple[int, int]:
    """Return (rank, count) such that rank's part of the rows of an array are those that this process's devices hold."""
    if not shape:
        raise UsageError("Shard.from_jax takes the shape of a global batch, its rows first; got ()")
    rows = rows_of_processes(sharding, shape)
    own = {device.process_index for device in sharding.addressable_devices}
    if len(own) != 1:
        raise UsageError(f"Shard.from_jax takes a sharding over devices of this process too; got {sharding}")
    parts = sorted(set(rows.values()))
    (process,) = own
    rank, count = parts.index(rows[process]), len(parts)
    expected = [(shape[0] * part // count, shape[0] * (part + 1) // count) for part in range(count)]
    if [list(part) for part in parts] != [[span] for span in expected]:
        held = "; ".join(f"process {process}: {_text(spans)}" for process, spans in sorted(rows.items()))
        raise UsageError(
            f"the {shape[0]} rows of a global batch must be cut into equal parts, one for each process or for several "
            f"that hold the same rows; this sharding has it otherwise ({held}). Order the mesh so that the devices of "
            "a process follow each other along the axis of the batch."
        )
    return rank, count


def rows_of_processes(sharding: JaxSharding, shape: Sequence[int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return which rows, as spans [start, stop), the devices of each process hold."""
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

"""Ranks from JAX's shardings: processes whose devices hold the same rows get the same part."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import UsageError


@dataclass(frozen=True)
class Device:
    """A device of some process."""

    number: int
    process_index: int


@dataclass
class Sharding:
    """Rows spread over the first axis of a mesh of devices and repeated over the second, as process `own` sees it."""

    mesh: list[list[Device]]
    own: int
    addressable_devices: set[Device] = field(init=False)

    def __post_init__(self) -> None:
        self.addressable_devices = {device for row in self.mesh for device in row if device.process_index == self.own}

    def devices_indices_map(self, global_shape: tuple[int, ...], /) -> dict[Any, tuple[slice, ...] | None]:
        """Return the part of each device; as in JAX, a single part has slices without bounds."""
        rows, parts = global_shape[0], len(self.mesh)
        rest = (slice(None),) * (len(global_shape) - 1)
        return {
            device: (slice(rows * part // parts, rows * (part + 1) // parts) if parts > 1 else slice(None), *rest)
            for part, row in enumerate(self.mesh)
            for device in row
        }


def mesh_of(processes: int, each: int, parts: int) -> list[list[Device]]:
    """Return the devices of some processes, in their order, as a mesh of `parts` rows."""
    devices = [Device(number, number // each) for number in range(processes * each)]
    width = len(devices) // parts
    return [devices[part * width : (part + 1) * width] for part in range(parts)]


def rows_of(sharding: Sharding, process: int, rows: int) -> set[int]:
    """Return the rows that the devices of a process hold."""
    parts = [
        part for device, part in sharding.devices_indices_map((rows, 3)).items() if device.process_index == process
    ]
    return {row for part in parts if part is not None for row in range(*part[0].indices(rows))}


@given(st.integers(1, 6), st.sampled_from([1, 2, 4]), st.data())
def test_each_process_gets_the_rows_that_its_devices_hold(processes: int, each: int, data: st.DataObject) -> None:
    """For any mesh, a process's part has the rows of its devices: its own rows, or those of a replica."""
    devices = processes * each
    parts = data.draw(st.sampled_from([part for part in range(1, devices + 1) if devices % part == 0]))
    rows = parts * data.draw(st.integers(1, 3))
    for process in range(processes):
        sharding = Sharding(mesh_of(processes, each, parts), process)
        held = rows_of(sharding, process, rows)
        others = [rows_of(sharding, other, rows) for other in range(processes)]
        if any((held & other and held != other) or len(held) != len(other) for other in others):
            with pytest.raises(UsageError, match="equal parts"):
                ps.Shard.from_jax(sharding, (rows, 3))
            continue
        shard = ps.Shard.from_jax(sharding, (rows, 3))
        assert held == set(range(rows * shard.rank // shard.count, rows * (shard.rank + 1) // shard.count))


def test_shardings_without_a_rank_are_refused() -> None:
    """Rows of a process that aren't contiguous, which the error lists; no rows; and devices of others alone."""
    with pytest.raises(
        UsageError, match=r"process 0: \[0, 2\), \[4, 6\); process 1: \[2, 4\), \[6, 8\)\). Order the mesh"
    ):
        ps.Shard.from_jax(Sharding([[Device(number, number % 2)] for number in range(4)], 0), (8,))
    with pytest.raises(UsageError, match=r"its rows as the first axis; got \(\)"):
        ps.Shard.from_jax(Sharding(mesh_of(2, 1, 2), 0), ())
    for no_shape in (0, None):
        with pytest.raises(UsageError, match=f"that it can cut; got .* and {no_shape} \\(TypeError"):
            ps.Shard.from_jax(Sharding(mesh_of(2, 1, 2), 0), cast("Any", no_shape))
    with pytest.raises(UsageError, match="devices of this process"):
        ps.Shard.from_jax(Sharding(mesh_of(2, 1, 2), 5), (4,))


def test_a_sharding_of_jax(devices: Any) -> None:
    """One process holds all rows, however they are cut among its devices; a shape may be an array."""
    jax: Any = pytest.importorskip("jax")
    mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("data", "model"))
    for axes in (("data",), ("data", "model"), (("data", "model"),), (None, "model"), ()):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        assert ps.Shard.from_jax(sharding, (8, 6)) == ps.Shard(0, 1)
        assert ps.Shard.from_jax(sharding, cast("Any", np.array([8, 6]))) == ps.Shard(0, 1)

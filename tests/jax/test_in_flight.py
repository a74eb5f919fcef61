"""Batches that are dropped while JAX is still copying them: the device gets their values."""

from typing import Any

import numpy as np
import pytest

import penstock as ps

jax = pytest.importorskip("jax")
door = pytest.importorskip("penstock.jax")

ROWS, WIDTH = 8, 100_003  # a device's two rows begin where JAX takes no memory as it is, and are copied by its threads
AT_ONCE = 8  # batches, more than have memory


def row(number: int) -> Any:
    """Return a row whose numbers identify it, and the place that it was cut from."""
    return np.full(WIDTH, number * 37 % 251, np.uint8)


def ends(batch: Any) -> Any:
    """Return the smallest and the largest number of each row."""
    return batch.min(1), batch.max(1)


def occupy(devices: Any) -> Any:
    """Return a function that gives the threads of JAX, those that copy as well, something else to do for a while."""

    def multiply(_: Any, matrix: Any) -> Any:
        return matrix @ matrix

    def repeatedly(matrix: Any) -> Any:
        return jax.lax.fori_loop(0, 200, multiply, matrix)

    compiled = jax.jit(repeatedly)
    matrices = [jax.device_put(np.eye(128, dtype=np.float32), device) for device in devices]
    jax.block_until_ready([compiled(matrix) for matrix in matrices])
    return lambda: [compiled(matrix) for matrix in matrices]


@pytest.mark.filterwarnings("ignore:.* batches are kept by the training loop:UserWarning")
@pytest.mark.parametrize(("workers", "rounds"), [("threads", 25), ("processes", 8)])
def test_dropped_in_flight(devices: Any, workers: Any, rounds: int) -> None:
    """A batch that is dropped at once, while its transfer is delayed, isn't overwritten by the batches that follow."""
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    dataset = ps.range(rounds * AT_ONCE * ROWS).map(row).batch(ROWS)
    reduced = jax.jit(ends)
    busy = occupy(devices)
    found: list[Any] = []
    in_flight = 0
    with door.Loader(dataset, sharding, num_workers=1, workers=workers, prefetch=2) as loader:
        batches = iter(loader)
        for _ in range(rounds):
            others = busy()
            for _ in range(AT_ONCE):  # those that are dropped make room for the next
                batch = next(batches)
                in_flight += not batch.is_ready()
                found.append(reduced(batch))
                del batch
            jax.block_until_ready(others)
    numbers = np.arange(len(dataset) * ROWS).reshape(-1, ROWS) * 37 % 251
    assert in_flight > rounds
    for (low, high), expected in zip(found, numbers, strict=True):
        assert np.asarray(low).tolist() == np.asarray(high).tolist() == expected.tolist()

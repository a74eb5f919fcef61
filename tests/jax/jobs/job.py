"""One process of a job that gets global batches, and records their rows.

    python job.py PROCESS PROCESSES PORT FOLDER STEPS [STATE]

The rows that its devices hold go to FOLDER/PROCESS.npz, the state after the last step to FOLDER/PROCESS.json. With
several processes it also looks at a mesh on which two at a time hold the same rows.
"""

import json
import sys
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
import penstock.jax

jax: Any = pytest.importorskip("jax")
ROWS, TOTAL, PER_PROCESS = 16, 128, 4


def noisy(number: int, rng: Any) -> Any:
    """Return an element of numbers that identify it, and of random ones."""
    return {"x": rng.normal(size=(8, 3)).astype(np.float32), "y": np.float32(number), "id": np.int32(number)}


def dataset() -> Any:
    """Return the global batches."""
    return ps.range(TOTAL, seed=5).shuffle().random_map(noisy).batch(ROWS)


def seen(arrays: Any) -> dict[str, Any]:
    """Return the rows that this process's devices hold, with their starts."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        for part in array.addressable_shards:
            found[f"{name} {part.index[0].start or 0}"] = np.asarray(part.data)
    return found


def main() -> None:
    """Run one process."""
    process, processes, port, folder, steps = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5])
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    devices = np.array(jax.devices())
    assert len(devices) == PER_PROCESS * processes
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("data",)), jax.sharding.PartitionSpec("data"))
    shard = ps.Shard.from_jax(sharding, (ROWS,))
    assert (shard.rank, shard.count) == (process, processes)
    with penstock.jax.Loader(dataset(), sharding, shard=shard, num_workers=1, workers="threads") as loader:
        if len(sys.argv) > 6:
            loader.load_state_dict(json.loads(Path(sys.argv[6]).read_text()))
        batches = chain.from_iterable(repeat(loader))
        rows = [seen(batch) for batch in islice(batches, steps)]
        Path(folder, f"{process}.json").write_text(json.dumps(loader.state_dict()))
    arrays = {f"{step} {name}": value for step, found in enumerate(rows) for name, value in found.items()}
    np.savez(Path(folder, f"{process}.npz"), **arrays)
    if processes > 1:
        shared_replicas(devices, process, processes)
    if processes == 2:
        refusals(devices, shard)


def shared_replicas(devices: Any, process: int, processes: int) -> None:
    """Check a mesh of two axes, on which two processes share a replica: the same rows, half of the columns each."""
    pairs = processes // 2
    mesh = devices.reshape(pairs, 2, PER_PROCESS).transpose(0, 2, 1).reshape(pairs * PER_PROCESS, 2)
    mesh = jax.sharding.Mesh(mesh, ("data", "model"))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    both = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "model"))
    shard = ps.Shard.from_jax(both, (ROWS, 8, 3))
    assert shard == ps.Shard(process // 2, pairs) == ps.Shard.from_jax(rows, (ROWS,))
    for sharding in (rows, {"x": both, "y": rows, "id": rows}):
        with penstock.jax.Loader(dataset(), sharding, shard=shard, num_workers=1, workers="threads") as loader:
            for arrays, expected in zip(loader, ps.Loader(dataset()), strict=True):
                assert all(arrays[name].shape == expected[name].shape for name in expected)
                assert holds_parts_of(arrays, expected)


def holds_parts_of(arrays: Any, expected: Any) -> bool:
    """Return whether this process's devices hold the parts of a global batch that they should."""
    return all(
        np.asarray(part.data).tobytes() == expected[name][part.index].tobytes()
        for name, array in arrays.items()
        for part in array.addressable_shards
    )


def refusals(devices: Any, shard: ps.Shard) -> None:
    """Check a loader whose shard isn't the sharding's, and one without a shard in a job of several processes."""
    mesh = jax.sharding.Mesh(devices.reshape(2, PER_PROCESS).T, ("data", "model"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with pytest.raises(ps.errors.UsageError, match="part 0 of 1"):
        next(iter(penstock.jax.Loader(dataset(), sharding, shard=shard)))
    with pytest.warns(UserWarning, match="this job has 2 processes"):
        untold = penstock.jax.Loader(dataset(), sharding)
    assert holds_parts_of(next(iter(untold)), next(iter(ps.Loader(dataset()))))


if __name__ == "__main__":
    main()

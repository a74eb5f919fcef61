"""Batches as JAX arrays: the same values, over the same memory, and clear errors for other leaves."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import GraphError, UsageError
from penstock.transport import leased_slots

jax = pytest.importorskip("jax")
door = pytest.importorskip("penstock.jax")

KEPT = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32", "complex64"]
LARGE = 1 << 16  # elements of a leaf: large enough to be lent, not copied out


class Registered:
    """A user's class that is registered with JAX, and no container for Penstock."""

    def __init__(self, x: Any, name: str) -> None:
        self.x = x
        self.name = name

    def tree_flatten(self) -> Any:
        """Take it apart."""
        return (self.x,), self.name

    @classmethod
    def tree_unflatten(cls, name: str, leaves: Any) -> "Registered":
        """Put it together."""
        (x,) = leaves
        return cls(x, name)


jax.tree_util.register_pytree_node_class(Registered)


def sharded(devices: Any, *axes: Any) -> Any:
    """Return a sharding of the rows over a mesh of devices."""
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(axes or ("data",))))


def same(arrays: Any, expected: Any) -> bool:
    """Return whether two batches of dicts hold the same bytes."""

    def leaves_are(one: Any, other: Any) -> bool:
        array = np.asarray(one)
        return bool(array.dtype == other.dtype and array.tobytes() == other.tobytes())

    return bool(jax.tree_util.tree_all(jax.tree_util.tree_map(leaves_are, arrays, expected)))


def element(number: int) -> Any:
    """Return some leaves of an element's."""
    return {"x": np.full((3, 2), number, np.float32), "label": np.int32(number), "more": [np.uint8(number % 7)]}


@settings(max_examples=15)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2), st.integers(0, 3), st.booleans())
def test_values_are_those_of_the_arrays(
    total: int,
    batch: int,
    workers: int,
    ahead: int,
    shuffled: bool,  # noqa: FBT001 - drawn
) -> None:
    """A dataset's batches have the structure, dtypes, shapes and bytes that they have as NumPy's arrays."""
    numbers = ps.range(total, seed=3)
    dataset = (numbers.shuffle() if shuffled else numbers).map(element).batch(batch)
    with door.Loader(dataset, ahead=ahead, num_workers=workers, workers="threads") as loader:
        for arrays, expected in zip(loader, ps.Loader(dataset), strict=True):
            assert same(arrays, expected)


def first(values: Any, number: int) -> Any:
    """Return the first of two arguments."""
    del number
    return values


def test_dtypes() -> None:
    """Each dtype that JAX has is kept, also one that NumPy has from elsewhere."""
    for dtype in [*KEPT, jax.numpy.bfloat16]:
        values = np.arange(6).reshape(3, 2).astype(dtype)
        batch = next(iter(door.Loader(ps.range(1).map(partial(first, values)))))
        assert batch.dtype == dtype
        assert np.asarray(batch).tobytes() == values.tobytes()


def test_wide_numbers() -> None:
    """64-bit numbers become narrow, as everywhere in JAX; those that don't fit are an error, not other numbers."""
    dataset = ps.read([{"id": np.int64(7), "x": 0.5}, {"id": np.int64(1 << 40), "x": 0.5}])
    loader = door.Loader(dataset)
    iterator = iter(loader)
    first = next(iterator)
    assert (first["id"].dtype, first["x"].dtype) == (np.int32, np.float32)
    with pytest.raises(GraphError, match=r"\['id'\].*1099511627776.*int32.*jax_enable_x64"):
        next(iterator)
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - JAX's way to say it
    try:
        assert next(iterator)["id"] == 1 << 40
    finally:
        jax.config.update("jax_enable_x64", False)  # noqa: FBT003 - as above


def test_pytrees_of_the_user(devices: Any) -> None:
    """An object that JAX knows as a pytree is treated as one, also with a sharding.

    `batch` refuses elements of this kind, and names the remedy: merged by the user's function, they are pytrees, too.
    """
    dataset = ps.range(8).batch(4).map(lambda numbers: Registered(numbers, "numbers"))
    elements = ps.range(8).map(lambda number: Registered(np.int32(number), "numbers"))
    with pytest.raises(UsageError, match=r"row 0 is a .*Registered\. .*batch\(n, merge="):
        next(iter(door.Loader(elements.batch(4))))

    def stacked(*leaves: Any) -> Any:
        return np.stack(leaves)

    def merged(parts: list[Registered]) -> Any:
        return jax.tree_util.tree_map(stacked, *parts)

    for batches, sharding in ((dataset, None), (dataset, sharded(devices)), (elements.batch(4, merge=merged), None)):
        with door.Loader(batches, sharding, num_workers=1, workers="threads") as loader:
            first, second = loader
        assert isinstance(first, Registered)
        assert isinstance(first.x, jax.Array)
        assert (first.name, second.x.tolist()) == ("numbers", [4, 5, 6, 7])


@pytest.mark.parametrize("cut", [False, True])
def test_arrays_are_the_loaders_memory(devices: Any, *, cut: bool) -> None:
    """On the CPU nothing is copied; the memory is held as long as an array, or a part of it, lives, and no longer."""
    dataset = ps.range(64).map(lambda number: np.full(LARGE, number, np.float32)).batch(4)
    sharding = sharded(devices) if cut else None
    gc.collect()  # JAX gives memory back at its next call, or at a collection
    before = leased_slots()
    with door.Loader(dataset, sharding, num_workers=2, workers="threads") as loader:
        iterator = iter(loader)
        for _ in range(8):  # the first are stacked while the layout of a row is learned
            next(iterator)
        kept = [next(iterator).addressable_shards[-1].data for _ in range(2)]
    del iterator, loader
    gc.collect()
    assert leased_slots() > before
    assert [float(part[-1, 0]) for part in kept] == [35, 39]
    kept.clear()
    jax.device_put(0)
    assert leased_slots() == before


def test_donated_batches_change_no_others() -> None:
    """A step that may overwrite its batch, which is dropped at once, never changes what another batch holds."""
    dataset = ps.range(400).map(lambda number: np.full(LARGE, number, np.float32)).batch(2)

    def overwrite(batch: Any) -> Any:
        return batch * 0 - 1

    def ends(batch: Any) -> Any:
        return batch.min(1), batch.max(1)

    step, last = jax.jit(overwrite, donate_argnums=0), jax.jit(ends)
    found: list[Any] = []
    with door.Loader(dataset, num_workers=2, workers="threads", prefetch=4) as loader:
        for batch in loader:
            found.append(last(batch))
            step(batch)
            del batch
    assert [each.tolist() for pair in found for each in pair] == [
        [2 * step, 2 * step + 1] for step in range(200) for _ in range(2)
    ]


def test_shardings(devices: Any) -> None:
    """A sharding cuts the rows of all leaves, a pytree of them those of each leaf, a prefix those of its subtrees."""
    dataset = ps.range(16).map(element).batch(8)
    rows, whole = sharded(devices), sharded(devices, None)
    for sharding, expected in {
        "one": (rows, [rows, rows, rows]),
        "prefix": ({"x": rows, "label": whole, "more": rows}, [whole, rows, rows]),
        "device": (devices[1], [jax.sharding.SingleDeviceSharding(devices[1])] * 3),
    }.values():
        for arrays, plain in zip(door.Loader(dataset, sharding), ps.Loader(dataset), strict=True):
            assert same(arrays, plain)
            assert [leaf.sharding for leaf in jax.tree_util.tree_leaves(arrays)] == expected
    with pytest.raises(GraphError, match="structure of a batch"):
        next(iter(door.Loader(dataset, {"x": rows})))
    with pytest.raises(UsageError, match=r"sharding must be.*got 'data'"):
        door.Loader(dataset, "data")


@dataclass
class Data:
    """A dataclass that isn't registered with JAX."""

    inside: Any
    y: Any


def test_other_dataclasses() -> None:
    """Registered types in them keep what JAX doesn't place; a message has the whole path of a leaf, as by torch."""

    def of(make: Callable[[Any], Any]) -> Any:
        return door.Loader(ps.range(4).batch(4).map(make))

    (batch,) = of(lambda numbers: {"a": [Data({"b": Registered(numbers, "numbers")}, numbers)]})
    data: Data = batch["a"][0]
    assert (data.inside["b"].name, data.inside["b"].x.tolist(), data.y.tolist()) == (
        "numbers",
        [*range(4)],
        [*range(4)],
    )
    with pytest.raises(GraphError, match=r"^\['a'\]\[0\]\.inside\['b'\]\[1\] of the batch has the type str"):
        list(of(lambda numbers: {"a": [Data({"b": [numbers, "text"]}, numbers)]}))
    with pytest.raises(GraphError, match=r"^\['x'\]\.inside of the batch is a masked array.*array\.filled\(0\)"):
        list(of(lambda numbers: {"x": Data(np.ma.masked_array(numbers, numbers > 2), 0)}))


def test_rows_that_cannot_be_cut(devices: Any) -> None:
    """A last batch that the devices can't share is an error with the remedy, as is a shard that isn't its own."""
    rows = sharded(devices)
    with pytest.raises(GraphError, match=r"the last batch has 2 rows.*into 4 equal parts.*remainder=\"drop\""):
        door.Loader(ps.range(10).map(element).batch(8), rows)
    with pytest.raises(GraphError, match=r"is a single value.*Make batches with batch"):
        door.Loader(ps.range(8), rows)
    assert len(list(door.Loader(ps.range(4).map(lambda number: np.full(8, number)), rows))) == 4
    loader = iter(door.Loader(ps.range(10).filter(bool).map(element).batch(8), rows))
    next(loader)
    with pytest.raises(GraphError, match=r"^\['label'\] of the global batch, of shape \(1,\).*remainder=\"drop\""):
        next(loader)
    padded = door.Loader(ps.range(10).batch(8, remainder="pad"), rows)
    assert [len(batch) for batch in padded] == [8, 8]
    with pytest.raises(UsageError, match=r"part 0 of 1.*Shard\(rank=1, count=2"):
        next(iter(door.Loader(ps.range(8).batch(8), rows, shard=ps.Shard(1, 2))))
    wrong: Any
    for sharding, wrong in ((rows, (6,)), (rows, 8), (devices[0], (8,))):
        with pytest.raises(UsageError, match=r"a jax.sharding.Sharding and the shape of a global batch"):
            ps.Shard.from_jax(sharding, wrong)
    with pytest.raises(GraphError, match="last batch may not divide by 4 ranks"):
        door.Loader(ps.range(14).batch(8), rows, shard=ps.Shard(1, 4))


def test_transfers_that_were_not_requested_are_forbidden(devices: Any) -> None:
    """A program that forbids them still gets batches, also with a sharding: placing is what a loader is for."""
    dataset = ps.range(8).map(element).batch(8)
    with jax.transfer_guard("disallow"):
        for sharding in (None, sharded(devices), devices[1]):
            (batch,) = door.Loader(dataset, sharding)
            assert np.array_equal(jax.device_get(batch["label"]), next(iter(dataset))["label"])

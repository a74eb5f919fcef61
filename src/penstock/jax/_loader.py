"""A loader whose batches are pytrees of JAX arrays, global ones if a sharding is given; and the placing of batches.

An array in the loader's memory is aligned so that JAX's CPU devices use it without a copy; the `jax.Array` holds it,
and with it the memory's lease. To other devices JAX copies it, and holds it until the copy is done.
"""

import importlib
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._dataset import Dataset, explain_methods
from penstock._graph import Element, chain_text, is_endless, need_count
from penstock._loader import PlacedLoader, PlacementThread
from penstock._plan import Limits, Plan, Shard
from penstock._tree import is_array, is_container, is_masked, map_children, subject
from penstock.errors import GraphError, UsageError

if TYPE_CHECKING:
    from penstock._loader import Loader as ArrayLoader
    from penstock._runtime import WorkerPool, Workers


# Imported by name, since type checkers don't find JAX where it isn't installed.
jax: Any = importlib.import_module("jax")
Sharding: TypeAlias = Any  # one of JAX's
_NUMBERS: Final = {
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
}
_PLAIN: Final = frozenset(map(np.dtype, _NUMBERS - {"int64", "uint64", "float64", "complex128"}))
_NARROW: Final = {np.dtype(np.int64): np.iinfo(np.int32), np.dtype(np.uint64): np.iinfo(np.uint32)}


class Loader(PlacedLoader):
    """Iterates over a dataset's epochs as `penstock.Loader` does, and yields pytrees of `jax.Array`.

    The structure of a batch is kept; types that are registered with JAX as pytrees are treated as such. As everywhere
    in JAX, 64-bit numbers become 32-bit ones unless `jax_enable_x64` is set; whole numbers that don't fit raise an
    error. Its state is that of `penstock.Loader`, which can load it: it counts delivered batches, not those that were
    placed ahead.

    With a sharding, arrays are global: each process supplies the rows of its devices, and all of them together are the
    global batch. Pass these rows as `shard=Shard.from_jax(sharding, shape)`. The loader doesn't detect ranks: without
    `shard=` every process of a job loads all rows, and the loader warns.

    On CPU devices an array uses the loader's memory without a copy, unless JAX needs another dtype, and keeps that
    memory as long as it exists. To other devices batches are copied ahead, while the devices compute.

    With workers, a thread of the loader makes the arrays, so that the training loop doesn't spend time on it. If a step
    takes less time than that, the training loop makes them itself. Without workers no thread is started.

    Args:
        dataset: the dataset to load.
        sharding: the placement of global batches: a `jax.sharding.Sharding`, a device, or a pytree of them that has the
            structure of a batch or of its upper part. By default JAX's default device. If the dataset isn't batched,
            its first element is computed to check that it can be placed so.
        ahead: the number of batches placed before they are requested, at least 0; they need memory for as many more
            batches. On CPU devices no batch is placed ahead without workers, which would gain nothing, or with
            `memory=`, since placed batches might hold all of it.
        num_workers: as in `penstock.Loader`, like all following arguments.
        workers: the kind of workers.
        isolated: True runs all of it in one helper process.
        ordered: True delivers batches in order.
        shard: the rank whose rows of each global batch to load.
        prefetch: the number of batches made ready before they are requested.
        memory: a bound for batches that are being made or held.
        copy: True delivers copies of the loader's memory.
        limits: bounds that are rarely needed.

    Raises:
        UsageError: an argument is invalid, or the shard isn't that of the sharding.
        GraphError: the dataset can't be run this way, or its last batch can't be cut as the sharding says. Iterating
            raises it for a leaf that JAX has no array for, or that can't be cut; exceptions of the dataset's own
            functions pass through.

    Example:
        >>> import penstock as ps
        >>> import penstock.jax
        >>> dataset = ps.range(8).map(lambda number: {"x": number / 2}).batch(4)
        >>> for batch in penstock.jax.Loader(dataset):
        ...     print(batch["x"])
        [0.  0.5 1.  1.5]
        [2.  2.5 3.  3.5]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sharding: object = None,
        *,
        ahead: int = 1,
        num_workers: int | Literal["auto"] | None = None,
        workers: "Workers | Literal['ray'] | ArrayLoader[object] | WorkerPool" = "auto",
        isolated: bool = False,
        ordered: bool = True,
        shard: Shard | None = None,
        prefetch: int = 2,
        memory: int | str | None = None,
        copy: bool = False,
        limits: Limits | None = None,
    ) -> None:
        ahead = need_count("ahead", ahead)
        super().__init__(
            dataset,
            num_workers=num_workers,
            workers=workers,
            isolated=isolated,
            ordered=ordered,
            shard=shard,
            prefetch=prefetch,
            memory=memory,
            copy=copy,
            limits=limits,
        )
        self._placing = Placing(sharding, self._plan.shard)
        self._keeps_memory = self._placing.is_on_host()
        if not self._plan.is_computed_here:
            self._thread = PlacementThread("penstock-placing")
        # On CPU devices only that thread can place ahead, and placed batches may hold all of `memory=`.
        on_request = self._keeps_memory and (self._thread is None or self._plan.memory is not None)
        self._ahead = 0 if on_request else ahead
        if sharding is not None:
            self._check_rows(dataset)
        if shard is None and jax.process_count() > 1:
            warnings.warn(
                f"this job has {jax.process_count()} processes, and each loads all rows of each batch. Pass shard=, as "
                "in Shard.from_jax(sharding, shape), or shard=Shard(0, 1) if that is intended.",
                stacklevel=3,
            )

    def _check_rows(self, dataset: Dataset[Any]) -> None:
        """Check that the last batch can be cut as the sharding says, and that elements that aren't batched can.

        Raises:
            GraphError: they can't.
        """
        plan = self._plan
        if not _has_equal_rows(plan):
            raise GraphError(
                f"{chain_text(dataset.node)}: the rows of the last batch may not divide by {plan.shard.count} "
                'ranks, and global arrays have equal parts. Use batch(…, remainder="drop") or remainder="pad".'
            )
        if not plan.is_indexed or not plan.length:
            return
        if plan.batches.batch is None:
            self.batch_at(0)
            return
        rows, parts = plan.batches.rest, self._placing.parts_of_rows()
        if plan.remainder == "keep" and not is_endless(plan.node) and rows % parts:
            raise GraphError(
                f"{chain_text(dataset.node)}: the last batch has {rows} rows, which the sharding can't cut into "
                f'{parts} equal parts. Use batch(…, remainder="drop") or remainder="pad".'
            )

    def _place(self, batch: Element) -> Callable[[], Element]:
        placed = self._placing(batch)
        return lambda: placed

    def _place_in_thread(self, batch: Element) -> Callable[[], Element]:
        placed = self._placing(batch)
        if not self._placing.depends_on_settings(batch):
            return lambda: placed
        there = settings()
        return lambda: placed if settings() == there else self._placing(batch)


explain_methods(Loader, __init__="ps.jax.Loader")


def _has_equal_rows(plan: Plan) -> bool:
    """Return whether all ranks have equally many rows of every batch; otherwise they disagree on the global shape."""
    count = plan.shard.count
    if count == 1 or plan.remainder != "keep" or is_endless(plan.node):
        return True
    rest = plan.program.rest
    return rest is not None and rest % count == 0


class Placing:
    """Makes JAX arrays of batches, placed as a sharding specifies. May be used by several threads."""

    def __init__(self, sharding: object, shard: Shard, outer_path: Callable[[], str] = str) -> None:
        """Check the arguments.

        Args:
            sharding: the placement of global batches: a sharding or device, or a pytree of them that has a batch's
                structure or is a prefix of it; None for JAX's default device.
            shard: this process's part of the rows.
            outer_path: returns the path of what is placed in its batch, for messages; by default it is the batch.
        """
        self._sharding: Any = None if sharding is None else jax.tree_util.tree_map(_as_sharding, sharding)
        self._shard = shard
        self._outer_path = outer_path
        self._is_one = isinstance(self._sharding, jax.sharding.Sharding)
        self._several = jax.process_count() > 1
        self._checked: set[tuple[object, tuple[int, ...]]] = set()

    def is_on_host(self) -> bool:
        """Return whether all arrays are on CPU devices, where they need no copy."""
        shardings = jax.tree_util.tree_leaves(self._sharding) or [jax.device_put(0).sharding]
        return all(device.platform == "cpu" for sharding in shardings for device in sharding.device_set)

    def parts_of_rows(self) -> int:
        """Return into how many parts the shardings cut rows; 1 if they don't say so."""
        shardings = jax.tree_util.tree_leaves(self._sharding)
        return math.lcm(*(_parts_of_rows(each) for each in shardings))

    def depends_on_settings(self, batch: Element) -> bool:
        """Return whether `settings` affect how a batch is placed."""
        return self._sharding is None or not all(map(_is_plain, jax.tree_util.tree_leaves(batch)))

    def __call__(self, batch: Element) -> Element:
        """Return the batch with each leaf as a placed array; copies to devices may still be running."""
        leaves, structure = jax.tree_util.tree_flatten(batch)
        shardings = self._shardings_for(batch, len(leaves))
        unknown: dict[int, Element] = {}
        for index, leaf in enumerate(leaves):
            if _is_plain(leaf):
                continue
            if is_container(leaf):  # JAX treats a dataclass that isn't registered with it as a leaf
                unknown[index] = self._placed_inside(partial(self._path, batch, index), shardings[index], leaf)
            else:
                leaves[index] = _host_array(partial(self._path, batch, index), leaf)
        known = [index for index in range(len(leaves)) if index not in unknown] if unknown else range(len(leaves))
        if self._sharding is not None:
            for index in known:
                self._check(batch, index, leaves[index], shardings[index])
        if not unknown:
            return structure.unflatten(self._put(leaves, shardings))
        put = self._put([leaves[index] for index in known], [shardings[index] for index in known])
        unknown |= zip(known, put, strict=True)
        return structure.unflatten([unknown[index] for index in range(len(leaves))])

    def _placed_inside(self, path: Callable[[], str], sharding: Sharding, container: Element) -> Element:
        """Return a container that JAX doesn't know with all that it holds placed; that may be types that JAX knows."""

        def placed(step: str, part: Element) -> Element:
            return Placing(sharding, self._shard, lambda: path() + step)(part)

        return map_children(placed, container)

    def _path(self, batch: Element, index: int) -> str:
        """Return the path of a leaf."""
        paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        return self._outer_path() + str(jax.tree_util.keystr(paths[index][0]))

    def _name(self, batch: Element, index: int) -> str:
        """Return the name of a leaf in messages."""
        return subject(self._path(batch, index))

    def _shardings_for(self, batch: Element, count: int) -> list[Any]:
        if self._sharding is None or self._is_one:
            return [self._sharding] * count

        found: list[Any] = []

        def spread(sharding: object, part: Element) -> None:
            found.extend([sharding] * len(jax.tree_util.tree_leaves(part)))

        try:
            jax.tree_util.tree_map(spread, self._sharding, batch)
        except (ValueError, TypeError, KeyError) as error:
            raise GraphError(
                "sharding must be one sharding, or have the structure of a batch or of its upper part; it has "
                f"{jax.tree_util.tree_structure(self._sharding)} for a batch of "
                f"{jax.tree_util.tree_structure(batch)} ({error})"
            ) from error
        return found

    def _put(self, arrays: list[Any], shardings: list[Any]) -> list[Any]:
        if self._sharding is None:
            put: list[Any] = jax.device_put(arrays)
            return put
        with jax.transfer_guard_host_to_device("allow"):  # for JAX, only `device_put` is a transfer that was requested
            return [self._put_one(array, sharding) for array, sharding in zip(arrays, shardings, strict=True)]

    def _put_one(self, array: Element, sharding: Sharding) -> Element:
        """Return a global array. `device_put` could also make it from a process's arrays, but takes twice as long."""
        if isinstance(array, jax.Array):  # made by a function of the dataset
            if not self._several:
                return jax.device_put(array, sharding)
            array = np.asarray(array)
        return jax.make_array_from_callback(self._global_shape(array), sharding, self._part_of(array))

    def _part_of(self, array: NDArray[Any]) -> Callable[[tuple[slice, ...]], NDArray[Any]]:
        """Return a function that returns any part of a global array in the rows that this process has."""
        if self._shard.count == 1 or not array.shape:
            return array.__getitem__
        before, total = self._shard.rank * len(array), self._shard.count * len(array)

        def part(index: tuple[slice, ...]) -> NDArray[Any]:
            start, stop, _ = index[0].indices(total)
            own: NDArray[Any] = array[(slice(start - before, stop - before), *index[1:])]
            return own

        return part

    def _global_shape(self, array: Element) -> tuple[int, ...]:
        shape: tuple[int, ...] = array.shape
        return (shape[0] * self._shard.count, *shape[1:]) if shape else ()

    def _check(self, batch: Element, index: int, array: Element, sharding: Sharding) -> None:
        """Check that a sharding fits a leaf, and that the shard fits both, once for each shape.

        Raises:
            GraphError: the leaf can't be cut as the sharding says.
            UsageError: the devices of this process hold other rows than the shard.
        """
        shape = self._global_shape(array)
        if (sharding, shape) in self._checked:
            return
        try:
            sharding.shard_shape(shape)
        except (ValueError, IndexError) as error:
            if not shape:
                raise GraphError(
                    f"{self._name(batch, index)} is a single value, which {sharding} can't cut ({error}). Make batches "
                    "with batch(…) first"
                ) from error
            raise GraphError(
                f"{self._name(batch, index)} of the global batch, of shape {shape}, can't be cut as {sharding} "
                f'says ({error}). For a last batch that isn\'t full, use batch(…, remainder="drop") or "pad"; for '
                "leaves that are cut in another way, pass a pytree of shardings."
            ) from error
        if self._shard.count > 1 and shape:
            held = Shard.from_jax(sharding, shape)
            if (held.rank, held.count) != (self._shard.rank, self._shard.count):
                raise UsageError(
                    f"the devices of this process hold part {held.rank} of {held.count} of the rows of "
                    f"{self._name(batch, index)}, and shard= is {self._shard}. Use shard=Shard.from_jax(sharding, "
                    "shape)."
                )
        self._checked.add((sharding, shape))


def settings() -> tuple[object, object]:
    """Return the thread's JAX settings, such as those of `with jax.default_device(…)`, that placing depends on."""
    return jax.config.jax_enable_x64, jax.config.jax_default_device


def _parts_of_rows(sharding: Sharding) -> int:
    """Return into how many parts a sharding over a mesh cuts the first axis."""
    spec, mesh = getattr(sharding, "spec", None), getattr(sharding, "mesh", None)
    if not spec or mesh is None or spec[0] is None:
        return 1
    names: tuple[Any, ...] = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
    return math.prod(mesh.shape[name] for name in names)


def _as_sharding(given: Sharding) -> Sharding:
    if isinstance(given, jax.Device):
        return jax.sharding.SingleDeviceSharding(given)
    if not isinstance(given, jax.sharding.Sharding):
        raise UsageError(f"sharding must be a jax.sharding.Sharding, a device, or a pytree of them; got {given!r}")
    return given


def _host_array(path: Callable[[], str], leaf: Element) -> Element:
    """Return a leaf as an array that JAX accepts; only 64-bit floats lose precision.

    Raises:
        GraphError: JAX has no array for the leaf, or would change its values.
    """
    if isinstance(leaf, jax.Array):
        return leaf
    if is_masked(leaf):
        raise GraphError(
            f"{subject(path())} of the batch is a masked array, whose mask a jax.Array would lose. In a map, return "
            "its data and its mask as two arrays, or fill it: array.filled(0)."
        )
    array: Any = np.asarray(leaf) if _is_number(leaf) else leaf
    if not is_array(array) or not _has_numbers(array.dtype):
        kind = f"the dtype {array.dtype}" if is_array(array) else f"the type {type(leaf).__qualname__}"
        raise GraphError(
            f"{subject(path())} of the batch has {kind}, for which JAX has no arrays. Convert it to numbers in a "
            "map, or leave it out."
        )
    narrow = _NARROW.get(array.dtype)
    if narrow is not None and array.size and not jax.config.jax_enable_x64:
        low, high = array.min(), array.max()
        if low < narrow.min or high > narrow.max:
            raise GraphError(
                f"{subject(path())} of the batch has values from {low} to {high}, and JAX would convert them to "
                f"{narrow.dtype}. Call jax.config.update('jax_enable_x64', True), or make them smaller in a map."
            )
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _is_plain(leaf: object) -> bool:
    """Return whether JAX takes a leaf unchanged."""
    return type(leaf) is np.ndarray and leaf.dtype in _PLAIN


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, np.generic | bool | int | float | complex)


def _has_numbers(dtype: np.dtype[Any]) -> bool:
    if dtype.type.__module__ != "numpy":  # a dtype of ml_dtypes, such as bfloat16
        return bool(jax.numpy.issubdtype(dtype, np.number))
    return dtype.isnative and dtype.name in _NUMBERS

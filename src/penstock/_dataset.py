"""The chainable facade: every verb returns a new dataset with one more step; nothing is read until it is asked for."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from penstock._graph._apply import Context
from penstock._graph._check import check_elements
from penstock._graph._describe import function_name, html_text, tree_text, verb_text
from penstock._graph._evaluate import element_at
from penstock._graph._fingerprint import fingerprint
from penstock._graph._in_order import elements
from penstock._graph._length import is_indexable, length
from penstock._graph._nodes import (
    Batch,
    Element,
    Filter,
    Map,
    Merge,
    Node,
    OnError,
    RandomForm,
    Read,
    Reindex,
    Remainder,
    Unbatch,
    chain,
    foot,
)
from penstock._graph._rewrite import hold_order, varies_by_epoch
from penstock._graph._verify import (
    finite_length,
    need_count,
    need_end,
    need_finite,
    need_function,
    need_indexable,
    need_integer,
    need_name,
    refuse,
    verify_step,
)
from penstock._seeds import derive
from penstock.batching import Pad, Stack
from penstock.batching._leaf import element_spec
from penstock.errors import UsageError
from penstock.sampling import (
    FixedEpoch,
    FixedOrder,
    Reorder,
    Repeat,
    ScalarSampler,
    Select,
    Shuffle,
    Slice,
    split_counts,
)
from penstock.sampling._sampler import check_sampler
from penstock.sources._as_source import as_source, source_length
from penstock.sources._range import Range


class Dataset:
    """A lazy description of data: what the model sees at step N is a pure function of it and N.

    Made by `read` and `range`; every verb returns a new dataset. Datasets are values: immutable, comparable with `==`,
    picklable if their functions are. Indexing, `len` and iteration follow Python and speak of epoch 0; a `Loader` goes
    through the epochs.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.range(10, seed=7).shuffle().map(float)
        >>> dataset
        map(float): 10
          └ shuffle(): 10
            └ read(Range(0, 10, 1)): 10
        >>> dataset[2:4][0] == dataset[2], sorted(dataset)[:3]
        (True, [0.0, 1.0, 2.0])
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def node(self) -> Node:
        """The description itself: a tree of frozen nodes. Internal; its form may change."""
        return self._node

    # ------------------------------------------------------------------ order

    def shuffle(self) -> "Dataset":
        """Return the elements in a random order: a true permutation, new in every epoch, in no memory.

        Errors: a GraphError if the dataset has no positions (after `filter`) or no end.

        Example:
            >>> import penstock as ps
            >>> sorted(ps.range(5, seed=7).shuffle())
            [0, 1, 2, 3, 4]
        """
        count = need_finite(self._node, "shuffle()")
        return self._permute(count, "shuffle", "shuffle()")

    def reindex(self, sampler: ScalarSampler) -> "Dataset":
        """Return the elements in the order that a sampler gives: any pure map from (epoch, position) to them.

        Args:
            sampler: has `len()` and `sampler(epoch, position) -> (epoch, position of this dataset)`, and, for speed,
                `block` over int64 arrays.

        Raises:
            UsageError: if it has not.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(4).reindex(ps.sampling.Slice(start=3, step=-1, length=4)))
            [3, 2, 1, 0]
        """
        need_indexable(self._node, "reindex()", "Use reindex before it.")
        check_sampler(sampler)
        return self._reindex(sampler, f"reindex({type(sampler).__name__})")

    def shard(self, index: int, count: int) -> "Dataset":
        """Return every `count`-th element from `index` on: a fixed split, the same in every epoch.

        For the ranks of a training job give the loader `shard=` instead, which cuts each global batch.

        Args:
            index: which shard, in [0, count).
            count: how many shards there are, at least 1.

        Raises:
            UsageError: if one is out of its range.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).shard(1, 4))
            [1, 5, 9]
        """
        count, index = need_count("count", count, 1), need_count("index", index)
        if index >= count:
            raise UsageError(f"index must be in [0, count); got index={index}, count={count}")
        total = need_finite(self._node, "shard()")
        return self._choose(Slice(index, count, len(range(index, total, count))), f"shard({index}, {count})")

    def take(self, count: int) -> "Dataset":
        """Return the first `count` elements, or all if there are fewer.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).take(3))
            [0, 1, 2]
        """
        total = need_indexable(self._node, "take()", "Use take before it.")
        count = need_count("count", count)
        return self._choose(Slice(0, 1, min(count, total)), f"take({count})")

    def skip(self, count: int) -> "Dataset":
        """Return all but the first `count` elements.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(5).skip(3))
            [3, 4]
        """
        total = need_finite(self._node, "skip()")
        count = need_count("count", count)
        start = min(count, total)
        return self._choose(Slice(start, 1, total - start), f"skip({count})")

    def select(self, positions: Sequence[int] | Sequence[bool] | NDArray[np.integer | np.bool_]) -> "Dataset":
        """Return the elements at the given positions, in that order; a position may come more than once.

        Args:
            positions: whole numbers, negative ones counted from the end, or one bool for every element.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).select([7, 2, -1]))
            [7, 2, 9]
        """
        total = need_finite(self._node, "select()")
        sampler = Select.from_positions(positions, total)
        return self._choose(sampler, f"select({len(sampler)} positions)")

    def split(self, fractions: Mapping[str, float], *, seed: int = 0) -> "dict[str, Dataset]":
        """Return disjoint random parts, such as train and validation; each keeps its records in every epoch.

        Args:
            fractions: a name and a share for each part; the shares are positive and sum to at most 1.
            seed: another seed gives other parts. It is independent of the dataset's own.

        Example:
            >>> import penstock as ps
            >>> parts = ps.range(10).split({"train": 0.8, "val": 0.2})
            >>> len(parts["train"]), sorted([*parts["train"], *parts["val"]])
            (8, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        """
        total = need_finite(self._node, "split()")
        dealt = self._reindex(FixedOrder(Shuffle(total, derive(need_integer("seed", seed), "split"))), "")
        parts: dict[str, Dataset] = {}
        start = 0
        for name, count in split_counts(total, fractions).items():
            parts[name] = dealt._choose(Slice(start, 1, count), f"split()[{name!r}]")  # noqa: SLF001 - its own class
            start += count
        return parts

    def subset(self, count: int) -> "Dataset":
        """Return `count` random elements, others in each epoch; over many epochs each comes equally often.

        Raises:
            UsageError: if there are fewer than `count`.

        Example:
            >>> import penstock as ps
            >>> len(set(ps.range(100).subset(10)))
            10
        """
        total = need_finite(self._node, "subset()")
        count = need_count("count", count)
        if count > total:
            raise UsageError(f"count must be at most the dataset's length; got count={count}, length={total}")
        node = self._permute(total, "subset", "").node
        return Dataset(Reindex(node, Slice(0, 1, count), f"subset({count})"))

    def repeat(self, times: int | None = None, *, reshuffle: bool = True) -> "Dataset":
        """Return the elements over and over: each pass is another epoch of what is below.

        Args:
            times: how many passes make one epoch of the result; None repeats without end.
            reshuffle: False gives every pass the order and the random maps of the first.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(3).repeat(2))
            [0, 1, 2, 0, 1, 2]
        """
        total = need_finite(self._node, "repeat()")
        if times is not None:
            times = need_count("times", times, 1)
        verb = f"repeat({'' if times is None else times})"
        return self._reindex(Repeat(total, times, reshuffle=reshuffle), verb)

    def epoch(self, number: int) -> "Dataset":
        """Return the dataset fixed at an epoch: the same order and random maps at every pass, as for validation.

        Example:
            >>> import penstock as ps
            >>> fixed = ps.range(100).shuffle().epoch(3)
            >>> list(fixed) == list(fixed.repeat(2))[100:]
            True
        """
        total = need_indexable(self._node, "epoch()", "Use epoch before it.")
        number = need_count("number", number)
        return self._reindex(FixedEpoch(total, number), f"epoch({number})")

    # ------------------------------------------------------------------ elements

    def map(self, function: Callable[[Any], Any], *, name: str | None = None, on_error: OnError = "raise") -> "Dataset":
        """Return `function(element)` of every element.

        Args:
            function: a function of the element alone. Called in blocks, on any worker, twice if need be.
            name: for messages; by default the function's own.
            on_error: what an exception does: "raise" it; "skip" the element, which makes the dataset ordered; or
                `ps.Substitute()` another position's element.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(3).map(lambda number: number * 10))
            [0, 10, 20]
        """
        need_function("map", function)
        return self._map(function, name, "none", on_error)

    def random_map(
        self,
        function: Callable[..., Any],
        *,
        rng: Literal["generator", "seed"] = "generator",
        globals: bool = False,  # noqa: A002 - the word says what is seeded
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset":
        """Return `function(element, rng)` of every element: random, and the same for any number of workers.

        The randomness is derived from (the dataset's seed, the step's name, epoch, position). Adding other steps does
        not change it; renaming this one does.

        Args:
            function: takes the element and a `numpy.random.Generator` that is valid only during the call.
            rng: "seed" hands over a 64-bit integer instead of a generator.
            globals: call `function(element)` with `random`, NumPy's global generator and (if loaded) torch's seeded
                around the call, for augmentations that draw from these. Such a step never runs on threads.
            name: names the random stream; by default the function's own, with `#2` for its second use.
            on_error: as in `map`.

        Raises:
            UsageError: if an argument is none of these.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.range(3, seed=1).random_map(lambda number, rng: number + rng.random())
            >>> list(dataset) == list(dataset)
            True
        """
        need_function("random_map", function)
        if rng not in ("generator", "seed"):
            raise UsageError(f'rng must be "generator" or "seed"; got rng={rng!r}')
        if globals and rng != "generator":
            raise UsageError(
                f"globals=True hands nothing to the function, so rng={rng!r} has no use. Leave one of them out."
            )
        return self._map(function, name, "globals" if globals else rng, on_error)

    def map_with_origin(
        self, function: Callable[[Any, Any], Any], *, name: str | None = None, on_error: OnError = "raise"
    ) -> "Dataset":
        """Return `function(element, origin)`; the origin tells the element's position, key, epoch and seed.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(2).map_with_origin(lambda number, origin: (number, origin.epoch, origin.key)))
            [(0, 0, 0), (1, 0, 1)]
        """
        need_function("map_with_origin", function)
        return self._map(function, name, "origin", on_error)

    def filter(self, predicate: Callable[[Any], object], *, name: str | None = None) -> "Dataset":
        """Return the elements for which `predicate(element)` is true; they can only be read in order.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(6).filter(lambda number: number % 2))
            [1, 3, 5]
        """
        need_function("filter", predicate)
        return Dataset(Filter(self._node, predicate, function_name(predicate) if name is None else need_name(name)))

    # ------------------------------------------------------------------ batches

    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        mask: str | None = None,
        merge: Merge | None = None,
    ) -> "Dataset":
        """Return batches of `size` elements, stacked leaf by leaf.

        Arrays and scalars get a leading axis of `size` rows; int, float and bool become int64, float64 and bool;
        str and bytes become a list. A differing dtype or shape is an error, never promoted.

        Args:
            size: rows of the *global* batch, over all ranks; at least 1.
            remainder: what becomes of a last batch that isn't full: "keep" it short, "drop" it, or "pad" it with its
                last element.
            mask: names a bool leaf, in every batch, that is true for rows of data and false for padding.
            merge: a function from a list of elements to a batch, instead of stacking.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        if merge is not None:
            need_function("merge", merge)
        return self._batch(size, merge or Stack(), remainder, mask)

    def padded_batch(
        self,
        size: int,
        *,
        length: int | None = None,
        fill: float = 0,
        mask: str | None = None,
        remainder: Remainder = "keep",
    ) -> "Dataset":
        """Return batches of elements whose arrays differ in length, padded along their first axis.

        Args:
            size: as in `batch`.
            length: pad to this many; None pads to the longest of each batch.
            fill: the value of padding.
            mask: names a bool leaf of shape (rows, length): true where there is data.
            remainder: as in `batch`.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> batches = ps.range(1, 4).map(lambda number: np.full(number, number)).padded_batch(3)
            >>> batches[0].tolist()
            [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        if length is not None:
            length = need_count("length", length, 1)
        return self._batch(size, Pad(length, fill, mask), remainder, None)

    def unbatch(self) -> "Dataset":
        """Return the rows of each batch as elements again.

        Example:
            >>> import penstock as ps
            >>> [int(row) for row in ps.range(5).batch(2).map(lambda batch: batch * 10).unbatch()]
            [0, 10, 20, 30, 40]
        """
        return Dataset(Unbatch(self._node))

    # ------------------------------------------------------------------ looking

    def check(self, count: int = 8) -> None:
        """Evaluate elements twice, and raise a GraphError that names a step which isn't a function of its input.

        Args:
            count: how many elements to look at, spread over the dataset and two epochs.

        Example:
            >>> import penstock as ps
            >>> ps.range(10).map(str).check()
        """
        base = next(step for step in reversed(chain(self._node)) if is_indexable(step))
        total = length(base) or 0
        places = [(index % 2, total * index // count) for index in range(need_count("count", count, 1))]
        check_elements(self._node, sorted(set(places)) if total else [])

    @property
    def element_spec(self) -> Any:  # noqa: ANN401 - the structure of the user's elements
        """The structure of an element, with a shape and dtype for every leaf; read off the first. None if empty.

        Example:
            >>> import penstock as ps
            >>> ps.range(8).batch(4).element_spec
            LeafSpec(shape=(4,), dtype=dtype('int64'))
        """
        first = next(iter(self), None)
        return None if first is None else element_spec(first)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What identifies the dataset in a state: digests of its source, its order and its functions.

        Example:
            >>> import penstock as ps
            >>> ps.range(8).fingerprint == ps.range(9).fingerprint
            False
        """
        parts = fingerprint(self._node)
        return {"source": parts.source, "order": parts.order, "functions": parts.functions}

    def __len__(self) -> int:
        return finite_length(self._node)

    def __bool__(self) -> bool:
        return True  # an ordered dataset has no length, and `if dataset:` must not ask for it

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...  # noqa: ANN401 - the user's element
    @overload
    def __getitem__(self, index: slice) -> "Dataset": ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        """Return the element at a position of epoch 0, or a dataset of a slice of them.

        Raises:
            IndexError: if there is no such position.
        """
        total = need_indexable(self._node, "indexing", "Iterate over it, or index before that step.")
        if isinstance(index, slice):
            need_end(self._node, _slice_text(index), counts_from_end=_counts_from_end(index))
            return self._choose(Slice.from_slice(index, total), _slice_text(index))
        position = operator.index(index)
        need_end(self._node, f"[{position}]", counts_from_end=position < 0)
        if not -total <= position < total:
            raise IndexError(f"position must be in [{-total}, {total}); got {position}")
        return element_at(self._node, 0, position % total, Context())

    def __iter__(self) -> Iterator[Any]:
        return elements(self._node, 0, 0, Context())

    def __eq__(self, other: object) -> bool:
        return self._node == other._node if isinstance(other, Dataset) else NotImplemented

    def __hash__(self) -> int:
        # Without the source: it may be unhashable, and its repr may differ between equal ones.
        read, *steps = chain(self._node)
        return hash((length(read), tuple(map(verb_text, steps))))

    def __repr__(self) -> str:
        return tree_text(self._node)

    def _repr_html_(self) -> str:
        first: list[Element] = []
        for element in self:
            first.append(element)
            if len(first) == 8:
                break
        return html_text(self._node, first)

    # ------------------------------------------------------------------ building

    def _reindex(self, sampler: ScalarSampler, verb: str) -> "Dataset":
        return Dataset(Reindex(self._node, sampler, verb))

    def _permute(self, count: int, default_name: str, verb: str) -> "Dataset":
        name = self._step_name(default_name, None)
        return Dataset(Reindex(self._node, Shuffle(count, derive(foot(self._node).seed, name)), verb, name))

    def _choose(self, sampler: Slice | Select, verb: str) -> "Dataset":
        # Above a shuffle a choice fixes the set, which is then reordered inside itself.
        if not varies_by_epoch(self._node):
            return self._reindex(sampler, verb)
        fixed = Reindex(hold_order(self._node), sampler, verb)
        return Dataset(Reindex(fixed, Reorder(len(sampler), derive(foot(self._node).seed, "reorder")), ""))

    def _map(self, function: Callable[..., Any], name: str | None, form: RandomForm, on_error: OnError) -> "Dataset":
        step_name = self._step_name(function_name(function), name)
        step = Map(self._node, function, step_name, derive(foot(self._node).seed, step_name), form, on_error)
        verify_step(step)
        return Dataset(step)

    def _batch(self, size: int, merge: Merge, remainder: Remainder, mask: str | None) -> "Dataset":
        size = need_count("size", size, 1)
        if remainder not in ("keep", "drop", "pad"):
            raise UsageError(f'remainder must be "keep", "drop" or "pad"; got remainder={remainder!r}')
        return Dataset(Batch(self._node, size, merge, remainder, mask))

    def _step_name(self, default: str, explicit: str | None) -> str:
        """Return the step's name: the explicit one, or the default with its ordinal, counted from the source."""
        taken = {step.name for step in chain(self._node) if isinstance(step, Map | Reindex)}
        if explicit is not None:
            need_name(explicit)
            if explicit in taken:
                refuse(self._node, f"two steps can't share the name {explicit!r}; give one of them another name=")
            return explicit
        names = (default if ordinal == 1 else f"{default}#{ordinal}" for ordinal in itertools.count(1))
        return next(name for name in names if name not in taken)


def read(source: object, *, seed: int = 0) -> Dataset:
    """Return the dataset whose element at position i is record i of a source.

    Args:
        source: any object with `__len__` and `__getitem__`; a dict of arrays of one length, whose records are dicts of
            rows; or one of `penstock.sources`. `read(keys)` and `__getitems__(keys)` are used where it has them.
        seed: from which the order of every shuffle and the randomness of every `random_map` derive; any integer.

    Raises:
        UsageError: if it is no source, or the seed no integer.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> dataset = ps.read({"x": np.arange(6.0), "y": np.arange(6)}, seed=7)
        >>> dataset[2]["x"].item(), len(dataset.shuffle().batch(4))
        (2.0, 2)
    """
    seed = need_integer("seed", seed)
    opened = as_source(source)
    return Dataset(Read(opened, source_length(opened), seed))


def integers(*bounds: int, seed: int = 0) -> Dataset:
    """Return the dataset of the integers of `range(*bounds)`.

    Args:
        *bounds: stop; or start, stop; or start, stop, step, as for the builtin.
        seed: as in `read`.

    Example:
        >>> import penstock as ps
        >>> list(ps.range(2, 8, 3))
        [2, 5]
    """
    numbers = range(*bounds)
    return read(Range(numbers.start, numbers.stop, numbers.step), seed=seed)


def _counts_from_end(index: slice) -> bool:
    """Return whether a slice's bounds depend on where the elements end."""
    backwards = index.step is not None and index.step < 0
    first, last = (index.stop, index.start) if backwards else (index.start, index.stop)
    return last is None or last < 0 or (first is not None and first < 0)


def _slice_text(index: slice) -> str:
    bounds = [index.start, index.stop] + ([] if index.step is None else [index.step])
    return f"[{':'.join('' if bound is None else str(bound) for bound in bounds)}]"

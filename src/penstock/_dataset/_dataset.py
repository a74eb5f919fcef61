"""The dataset: a chainable description of data, with all its verbs.

A verb checks its arguments, wraps the node of this dataset in one more node, and returns the dataset of that. Nothing
is read until an element is needed. Arguments that take long to check are checked in `_packing.py`; an indexed filter is
computed in `_filter_index.py`.
"""

import itertools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, SupportsIndex, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from penstock import _dataset, _graph, _plan, _storage, _streaming
from penstock._dataset._block_order import shuffle_sampler
from penstock._dataset._field_names import ATTRIBUTES, attribute_text, explain_verbs
from penstock._dataset._packing import (
    Lengths,
    bucket_limits,
    bucket_rows,
    keeps_remainder,
    make_bucketing,
    make_packing,
    planned_buckets,
    planned_packing,
)
from penstock._graph import (
    Batch,
    Cache,
    Combiner,
    Filter,
    Fold,
    Gather,
    Map,
    Merge,
    Node,
    OnError,
    Origin,
    RandomForm,
    Reindex,
    Remainder,
    Split,
    cache_identity,
    chain,
    choose,
    fingerprint,
    finite_length,
    function_name,
    is_indexable,
    length,
    need_count,
    need_end,
    need_finite,
    need_fixed_order,
    need_function,
    need_indexable,
    need_integer,
    need_jax,
    need_name,
    need_reach,
    parse_bytes,
    refuse,
    repeated,
    root,
    tree_text,
    verb_text,
    verify_cached,
    verify_step,
)
from penstock._os import local_path
from penstock._properties import NotesErrors, raise_noted
from penstock._seeds import derive
from penstock._tracebacks import trim
from penstock.batching import Pad, Stack, element_spec
from penstock.errors import UsageError
from penstock.sampling import (
    Balance,
    CheckedSampler,
    FixedEpoch,
    FixedOrder,
    Ragged,
    Repeat,
    ScalarSampler,
    Select,
    Shuffle,
    Slice,
    WeightedDraws,
    WindowTable,
    balanced_length,
    check_sampler,
    reach_of,
    split_counts,
)

if TYPE_CHECKING:
    import typing_extensions

    from penstock._graph import Preview
    from penstock._plan import Explanation

    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)  # `Dataset` alone means `Dataset[Any]`
else:
    T_co = TypeVar("T_co", covariant=True)

U = TypeVar("U")
Scalar = TypeVar("Scalar", bound=np.generic)


class Dataset(NotesErrors, Generic[T_co]):
    """A lazy description of data. The batch at step N is a pure function of the description and N.

    `read`, `range` and `stream` make datasets; each verb returns a new dataset and reads nothing. Datasets are values:
    immutable, comparable with `==`, picklable if their functions are. Indexing, `len` and iteration follow Python's
    sequences, and return elements of epoch 0; a `Loader` delivers epoch after epoch. At most 200 steps may be one above
    the other. So join many datasets by one call of `concatenate`, not one after the other in a loop.

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
        _graph.check_depth(node)
        self._node = node

    def __len__(self) -> int:
        return finite_length(self._node)

    def __bool__(self) -> bool:
        return True  # a dataset that is read in order has no length, which `if dataset:` must not need

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> "Dataset[T_co]": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "T_co | Dataset[T_co]":
        """Return the element at a position of epoch 0, or the dataset of a slice of positions.

        Raises:
            IndexError: there is no such position.
            TypeError: the index is neither a whole number nor a slice.
        """
        total = need_indexable(self._node, "indexing", "Iterate over it, or index before that step.")
        if isinstance(index, slice):
            chosen = Slice.from_slice(index, total)  # checks the bounds
            need_end(self._node, _slice_text(index), counts_from_end=_counts_from_end(index))
            need_reach(self._node, _slice_text(index), max(index.start or 0, index.stop or 0))
            return self._new(choose(self._node, chosen, _slice_text(index)))
        try:
            position = operator.index(index)
        except TypeError as error:
            raise TypeError(
                f"an index of a dataset is a position or a slice; got {index!r:.200}. For a field of the elements "
                "use map(lambda element: element[name]), for several positions select(positions)"
            ) from error
        need_end(self._node, f"[{position}]", counts_from_end=position < 0)
        if not -total <= position < total:
            raise IndexError(_graph.position_text(self._node, total, position))
        try:
            element: T_co = _graph.element_at(self._node, 0, position % total, _graph.Context())
        except Exception as error:
            trim(error)
            raise
        return element

    def __iter__(self) -> Iterator[T_co]:
        return _streaming.elements(self._node, 0, 0, _graph.Context())

    def __eq__(self, other: object) -> bool:
        return self._node == other.node if isinstance(other, Dataset) else NotImplemented

    def __hash__(self) -> int:
        # The source is left out: it may be unhashable, and equal sources may have different reprs.
        read, *steps = chain(self._node)
        return hash((length(read), tuple(map(verb_text, steps))))

    def __repr__(self) -> str:
        return tree_text(self._node)

    def _repr_html_(self) -> str:
        return _graph.html_text(self._node)

    if not TYPE_CHECKING:  # with this method type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Refuse an attribute; the message of a name that other libraries have says what to use.

            Raises:
                AttributeError: always.
            """
            raise_noted(self, name)
            # Without `obj` Python would not suggest another name; beside a remedy it shall not.
            raise AttributeError(attribute_text(name), name=name, obj=None if name in ATTRIBUTES else self)

    # Looking at a dataset

    def show(self, count: int = 8) -> "Preview":
        """Return the first elements, for a terminal or, as a table with pictures and texts, for a notebook.

        A notebook shows a dataset by itself, too, but without calling your functions: as far as elements are made
        without them, they are those of the dataset, else those of a step below it, such as the records of the source.

        Args:
            count: the maximum number of elements, which are evaluated as in a `for` loop.

        Raises:
            UsageError: `count` is not an integer of at least 0.

        Example:
            >>> import penstock as ps
            >>> print(ps.range(4).map(lambda number: {"n": number, "text": str(number)}).show(2))
            map(<lambda>): 4
            └ read(Range(0, 4, 1)): 4
            <BLANKLINE>
            0  ['n']: 0, ['text']: '0'
            1  ['n']: 1, ['text']: '1'
        """
        return _graph.Preview(self._node, list(itertools.islice(self, need_count("count", count))))

    def check(self, count: int = 8) -> None:
        """Evaluate elements twice, and raise a GraphError that names a step whose results differ.

        On Linux they are also evaluated in another process, if the dataset can be pickled and takes at most 256 MB. So
        this finds results that depend on the order of a set, or on `hash()` of a text.

        The first elements of a dataset that is read in order, such as one with a stream or `window_shuffle`, are
        computed in whole in two passes over epoch 0, and in one of the other process. These read at most 256 elements
        of each input for each element, or, above `zip`, as many as they need. An iterable that can be read only once
        is then used up.

        Unless a stream is below it, the object of a `combine` is resumed after each of its first `4 * count` elements,
        and compared with one that was not. So this finds a `held` that leaves out elements.

        Args:
            count: the number of elements to check, spread over the dataset and two epochs, and of a pass.

        Example:
            >>> import penstock as ps
            >>> ps.range(10).map(str).check()
        """
        _streaming.check_graph(self._node, need_count("count", count, 1))

    @property
    def element_spec(self) -> Any:  # noqa: ANN401 - the structure of the user's elements
        """The structure of the first element, with the shape and dtype of each leaf; None for an empty dataset.

        Example:
            >>> import penstock as ps
            >>> ps.range(8).batch(4).element_spec
            LeafSpec(shape=(4,), dtype=dtype('int64'))
        """
        first = next(iter(self), None)
        return None if first is None else element_spec(first)

    def explain(self, *, evaluate: bool = True) -> "Explanation":
        """Return a report on the dataset: the steps that workers compute, randomness, mixtures, how ranks end.

        Args:
            evaluate: compute the first element, to show its structure, or the error that it raises.

        Example:
            >>> import penstock as ps
            >>> sections = dict(ps.range(10).shuffle().batch(4).explain().sections)
            >>> print(sections["ranks"][0])
            2 ranks end on the same step: each row's position is known
        """
        return _plan.explain(self._node, evaluate=evaluate)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digests of the dataset's source, order and functions, which identify it in a state.

        Example:
            >>> import penstock as ps
            >>> ps.range(8).fingerprint == ps.range(9).fingerprint
            False
        """
        parts = fingerprint(self._node)
        return {"source": parts.source, "order": parts.order, "functions": parts.functions}

    @property
    def node(self) -> Node:
        """The description: a tree of frozen nodes. Internal; its form may change."""
        return self._node

    # Order: which elements there are, and in what order. Most are a sampler over the dataset below.

    def shuffle(
        self,
        *,
        seed: int | None = None,
        blocks: bool | int = False,
        live: int | None = None,
        rows: int | None = None,
    ) -> "Dataset[T_co]":
        """Return the elements in a random order that is another one in each epoch: an exact shuffle in O(1) memory.

        A uniform shuffle reads records from all over the storage. Where records that are stored together are read
        together, such as a row group of Parquet, pass `blocks=True`: the order then has only `live` blocks open at a
        time, reads each of them once an epoch, and is still an exact permutation with random access. The mean of a
        sorted feature over a batch of b elements has about max(1, b / live) times the variance of a uniform shuffle,
        so `live` of the batch size is enough. `penstock.sampling.BlockShuffle` describes the order, which takes
        about 40 bytes a block.

        Choose elements (`take`, `split`, `shard`) before a shuffle by blocks: a choice above it is shuffled uniformly
        after epoch 0.

        Args:
            seed: of the order. Default: the seed of the dataset, an argument of `read`.
            blocks: True for the blocks of the source, an attribute of it; a number for equal blocks of so many
                elements. Default False: a uniform shuffle.
            live: with `blocks`, the number of blocks that are open at a time. Default 256.
            rows: with `blocks`, the rows of your global batch. Ranks then read different blocks. Default 256.

        Raises:
            GraphError: the dataset has no positions, as after `filter`, or no end; or `blocks=True`, and the source
                has no blocks, or another step is in between.
            UsageError: an argument is out of range, or `live` or `rows` is passed without `blocks`.

        Example:
            >>> import penstock as ps
            >>> sorted(ps.range(5, seed=7).shuffle())
            [0, 1, 2, 3, 4]
            >>> near = ps.range(1000, seed=7).shuffle(blocks=100, live=2, rows=8)
            >>> len({number // 100 for number in near[:50]}) <= 4
            True
        """
        count = need_finite(self._node, "shuffle()")
        if seed is not None:
            seed = need_integer("seed", seed)
        options = {"seed": seed, "blocks": blocks or None, "live": live, "rows": rows}
        text = ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
        name, step_seed = self._random_step("shuffle", seed=seed)
        sampler = shuffle_sampler(self._node, count, step_seed, blocks=blocks, live=live, rows=rows)
        return self._new(Reindex(self._node, sampler, f"shuffle({text})", name))

    def reindex(self, sampler: ScalarSampler) -> "Dataset[T_co]":
        """Return the elements in the order of a sampler: a pure function from (epoch, position) to those below.

        Args:
            sampler: an object with `len()` and `sampler(epoch, position) -> (epoch, position of this dataset)`, and,
                for speed, `block(epochs, positions)` over int64 arrays.

        Raises:
            UsageError: the sampler has no such methods, or is one of Penstock's for a longer dataset.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(4).reindex(ps.sampling.Slice(start=3, step=-1, length=4)))
            [3, 2, 1, 0]
        """
        total = need_indexable(self._node, "reindex()", "Use reindex() before it.")
        check_sampler(sampler)
        innermost = sampler
        while isinstance(innermost, FixedOrder):
            innermost = innermost.sampler
        is_own = type(innermost).__module__.startswith("penstock.")
        if is_own and (reach := reach_of(sampler)) is not None and reach > total:
            raise UsageError(
                f"reindex() takes a sampler of keys below {total:,}, the number of elements; the largest key of "
                f"{sampler!r} is {reach - 1:,}. Pass one for len(dataset) elements."
            )
        checked = sampler if is_own else CheckedSampler(sampler, total)
        return self._new(Reindex(self._node, checked, f"reindex({type(sampler).__name__})"))

    def shard(self, index: int, count: int) -> "Dataset[T_co]":
        """Return every `count`-th element from `index` on: a fixed part, the same in every epoch.

        For the ranks of a training job pass `shard=` to the loader instead, which divides each global batch.

        Args:
            index: the number of the shard, in [0, count).
            count: the number of shards, at least 1.

        Raises:
            UsageError: an argument is out of its range.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).shard(1, 4))
            [1, 5, 9]
        """
        count, index = need_count("count", count, 1), need_count("index", index)
        if index >= count:
            raise UsageError(f"index must be in [0, count); got index={index}, count={count}")
        total = need_finite(self._node, "shard()")
        return self._new(
            choose(self._node, Slice(index, count, len(range(index, total, count))), f"shard({index}, {count})")
        )

    def take(self, count: int) -> "Dataset[T_co]":
        """Return the first `count` elements, or all elements if there are fewer.

        Above a shuffle, also one of a mixture's part, these are the elements that come first in epoch 0. They are the
        same in every epoch, so that a part of a dataset never exchanges elements with the rest; each later epoch
        shuffles all of them together. So of a mixture, the shares and the schedule then hold in epoch 0 only. The same
        is true of `skip`, `shard`, `select`, `split`, slices, and `filter` with an index. For the first elements of
        each epoch, call `reindex(Slice(0, 1, count))`, of `penstock.sampling`.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).take(3))
            [0, 1, 2]
        """
        total = need_indexable(self._node, "take()", "Use limit(n), or take() before it.")
        count = need_count("count", count)
        need_reach(self._node, f"take({count})", count)
        return self._new(choose(self._node, Slice(0, 1, min(count, total)), f"take({count})"))

    def skip(self, count: int) -> "Dataset[T_co]":
        """Return all but the first `count` elements.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(5).skip(3))
            [3, 4]
        """
        total = need_finite(self._node, "skip()")
        count = need_count("count", count)
        start = min(count, total)
        return self._new(choose(self._node, Slice(start, 1, total - start), f"skip({count})"))

    def select(self, positions: Sequence[int] | Sequence[bool] | NDArray[np.integer | np.bool_]) -> "Dataset[T_co]":
        """Return the elements at some positions, in that order; positions may repeat.

        Args:
            positions: integers, negative ones counted from the end; or one bool for each element.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).select([7, 2, -1]))
            [7, 2, 9]
        """
        total = need_finite(self._node, "select()")
        sampler = Select.from_positions(positions, total)
        return self._new(choose(self._node, sampler, f"select({len(sampler)} positions)"))

    @overload
    def split(self, fractions: Mapping[str, float], *, seed: int = 0) -> "dict[str, Dataset[T_co]]": ...
    @overload
    def split(self, fractions: float, *, seed: int = 0) -> "tuple[Dataset[T_co], Dataset[T_co]]": ...
    @overload
    def split(self, fractions: Sequence[float], *, seed: int = 0) -> "tuple[Dataset[T_co], ...]": ...
    def split(
        self, fractions: Mapping[str, float] | float | Sequence[float], *, seed: int = 0
    ) -> "dict[str, Dataset[T_co]] | tuple[Dataset[T_co], ...]":
        """Return disjoint random parts, such as train and validation; each has the same records in every epoch.

        Args:
            fractions: the share of each part, by name or as a list; shares are positive and sum to at most 1. One
                number is the share of the first of two parts, and the second one has the rest.
            seed: selects the parts, independent of the dataset's own seed.

        Returns:
            The parts by name; or, if the shares have no names, a tuple.

        Example:
            >>> import penstock as ps
            >>> parts = ps.range(10).split({"train": 0.8, "val": 0.2})
            >>> len(parts["train"]), sorted([*parts["train"], *parts["val"]])
            (8, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
            >>> train, val = ps.range(10).split(0.8)
            >>> list(train) == list(parts["train"]), list(val) == list(parts["val"])
            (True, True)
        """
        total = need_finite(self._node, "split()")
        dealt = Reindex(self._node, FixedOrder(Shuffle(total, derive(need_integer("seed", seed), "split"))), "")
        parts: dict[str, Dataset[T_co]] = {}
        start = 0
        named = _named_fractions(fractions)
        for name, count in split_counts(total, named).items():
            shown = repr(name) if named is fractions else name
            parts[name] = self._new(choose(dealt, Slice(start, 1, count), f"split()[{shown}]"))
            start += count
        return parts if named is fractions else tuple(parts.values())

    def subset(self, count: int) -> "Dataset[T_co]":
        """Return `count` random elements, different ones in each epoch; over many epochs all are equally frequent.

        Raises:
            UsageError: the dataset has fewer than `count` elements.

        Example:
            >>> import penstock as ps
            >>> len(set(ps.range(100).subset(10)))
            10
        """
        total = need_finite(self._node, "subset()")
        count = need_count("count", count)
        if count > total:
            raise UsageError(f"count must be at most the dataset's length; got count={count}, length={total}")
        name, seed = self._random_step("subset")
        shuffled = Reindex(self._node, Shuffle(total, seed), "", name)
        return self._new(Reindex(shuffled, Slice(0, 1, count), f"subset({count})"))

    def sample(
        self, weights: Sequence[float] | NDArray[np.integer | np.floating], count: int | None = None
    ) -> "Dataset[T_co]":
        """Return elements drawn with replacement, with probabilities in proportion to weights; new draws in each epoch.

        Each draw is a hash of its position over an alias table (Walker, 1977), so any draw can be computed by itself.

        Args:
            weights: one number for each element, at least 0 and not all 0. They need not sum to 1.
            count: the number of draws in an epoch. Default: the number of elements.

        Raises:
            UsageError: the weights aren't as described.

        Example:
            >>> import penstock as ps
            >>> sorted(set(ps.range(3).sample([0, 1, 1], 20)))
            [1, 2]
        """
        total = need_finite(self._node, "sample()")
        count = total if count is None else need_count("count", count)
        drawn = _one_each("weights", weights, total)
        name, seed = self._random_step("sample")
        return self._new(Reindex(self._node, WeightedDraws(drawn, count, seed), f"sample({count})", name))

    def balance(
        self, labels: Sequence[int] | Sequence[str] | NDArray[Any], count: int | None = None
    ) -> "Dataset[T_co]":
        """Return elements with an equal share of each class, in an order that changes with the epoch.

        Of as many consecutive elements as there are classes, one is of each class. The elements of a class are in the
        order of a permutation, then of another one, so none is repeated before all of its class were used.

        Args:
            labels: the class of each element, integers or strings.
            count: the number of elements in an epoch. Default: the number with which the largest class is used once.

        Raises:
            UsageError: there isn't one label for each element.

        Example:
            >>> import penstock as ps
            >>> labels = ["cat"] * 6 + ["dog"] * 2
            >>> drawn = list(ps.range(8).balance(labels))
            >>> len(drawn), sum(number >= 6 for number in drawn)
            (12, 6)
        """
        total = need_finite(self._node, "balance()")
        classes = _one_each("labels", labels, total)
        count = balanced_length(classes) if count is None else need_count("count", count)
        name, seed = self._random_step("balance")
        return self._new(Reindex(self._node, Balance(classes, count, seed), f"balance({count})", name))

    def window_shuffle(self, size: int, *, name: str | None = None) -> "Dataset[T_co]":
        """Return windows of `size` consecutive elements, each window in a random order of its own.

        For a dataset that is read in order, as after `filter` or from a stream; where there are positions, `shuffle`
        is better. A loader's state has a position in the window, and a resume computes that one window again.

        Args:
            size: the number of elements in a window; the last window may have fewer. No element is lost or repeated.
            name: the name of the random stream. Default: "window_shuffle".

        Example:
            >>> import penstock as ps
            >>> numbers = list(ps.range(25, seed=7).filter(lambda number: True).window_shuffle(10))
            >>> sorted(numbers) == list(range(25)), sorted(numbers[:10]) == list(range(10))
            (True, True)
        """
        size = need_count("size", size, 1)
        step_name, seed = self._random_step("window_shuffle", name)
        return self._new(Fold(self._node, _streaming.WindowShuffle(size, step_name, seed)))

    def limit(self, count: int) -> "Dataset[T_co]":
        """Return the first `count` elements. Above a batch this is the number of steps in an epoch, on every rank.

        Of a dataset that is read in order, all ranks then end on the same step. If one of several ranks runs out of
        data before the limit, it raises a GraphError; a single rank ends with its data.

        Below a batch, or without one, `count` also counts on every rank in a dataset that is read in order: each rank
        takes the first `count` elements of its part, so 4 ranks take four times as many together. In a dataset with
        positions it is `take`, which counts over all ranks.

        Above a shuffle, `take` has the same elements in every epoch. For epochs of `count` steps with other elements in
        each, leave the loop over the loader after `count` steps: the next loop begins the next epoch. Or call
        `reindex(Slice(0, 1, count))`, of `penstock.sampling`, above the shuffle.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).filter(lambda number: number % 2).limit(3))
            [1, 3, 5]
        """
        count = need_count("count", count)
        if is_indexable(self._node):
            return self.take(count)
        return self._new(Fold(self._node, _streaming.Limit(count)))

    def repeat(self, times: int | None = None, *, reshuffle: bool = True) -> "Dataset[T_co]":
        """Return the elements of several passes; each pass is another epoch of the dataset below.

        In a dataset that is read in order, batches and packed sequences continue over the end of a pass with elements
        of the next one. If there is a `mix`, `concatenate`, `interleave` or `zip` of several parts below, these must
        have positions: parts that are read in order could only be repeated one by one, as `mix(stop="never")` does.

        If filters, or functions with `on_error="skip"`, leave out all elements of a repeat without end, or `flat_map`
        makes nothing of them, reading raises GraphError after 20 passes in which there was none, and at least 100,000
        elements. Nothing is counted above a fold, a batch, `stream` or `flat_map` without `counts=`: if these, or
        filters above them, leave nothing, reading goes on for ever.

        Args:
            times: the number of passes in an epoch of the result; None repeats without end. If the dataset has
                positions, these are at most 2**31 passes, after which a loader raises an error. Of a dataset of a few
                elements, `repeat(1000).repeat()` makes more.
            reshuffle: False repeats the order and the random maps of the first pass, also of maps above this step: they
                draw other numbers only in the next epoch, and a repeat without end has none.

        Raises:
            GraphError: the dataset has positions and no end; or it is read in order, and there is a `limit` below, or
                several parts that are read in order, or `reshuffle` is False.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(3).repeat(2))
            [0, 1, 2, 0, 1, 2]
        """
        if times is not None:
            times = need_count("times", times, 1)
        verb = f"repeat({'' if times is None else times})"
        if not is_indexable(self._node):
            if not reshuffle:
                refuse(self._node, "reshuffle=False needs positions. Use repeat before the step that has none.")
            remedy = " Or leave repeat() out, since a Loader begins the next epoch by itself."
            return self._new(repeated(self._node, times, verb, remedy))
        total = need_finite(self._node, "repeat()")
        return self._new(Reindex(self._node, Repeat(total, times, reshuffle=reshuffle), verb))

    def epoch(self, number: int) -> "Dataset[T_co]":
        """Return the dataset fixed at one epoch: the same order and random maps in every pass, as for validation.

        Random maps above this step, too, draw the same numbers in every pass, so don't augment a training set with
        them. To fix the order alone, call `reindex(FixedOrder(Shuffle(n, seed)))`, of `penstock.sampling`, in place of
        `shuffle()`. In a part of a mixture, too, the order is that of this dataset, whatever the part's name.

        Example:
            >>> import penstock as ps
            >>> fixed = ps.range(100).shuffle().epoch(3)
            >>> list(fixed) == list(fixed.repeat(2))[100:]
            True
        """
        total = need_indexable(self._node, "epoch()", "Use epoch() before it.")
        number = need_count("number", number)
        return self._new(Reindex(self._node, FixedEpoch(total, number), f"epoch({number})"))

    # Elements: functions of each element alone

    def map(
        self, function: Callable[[T_co], U], *, name: str | None = None, on_error: OnError = "raise"
    ) -> "Dataset[U]":
        """Return `function(element)` for each element.

        Args:
            function: a function of the element alone. Any worker may call it, and may call it again for the same
                element. It must not change a record that the source keeps, such as a dict in a list: return a new one,
                as in `record | {"text": text}`. With `ps.PerWorker(make)` each worker makes its own, as for a decoder
                or a connection. If the function is an object with a method `apply_block(elements)`, that method may be
                called for several elements at once. It must change none, and return what the function returns for each;
                if it raises, the function is called for each element.
            name: for messages. Default: the function's name.
            on_error: the response to an exception. "raise" raises it in the consumer; "skip" leaves out the element,
                so the dataset is read in order; `ps.Substitute()` uses the element of another position. It covers this
                function, and no read below it: for a source that may fail, pass the source's own `__getitem__` to the
                map of a `range(len(source))`.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(3).map(lambda number: number * 10))
            [0, 10, 20]
        """
        remedy = (
            "A tuple is one element, as in lambda pair: f(*pair); random_map passes a generator, too, and "
            "map_with_origin the element's origin"
        )
        need_function("map", function, "the element", remedy=remedy)
        return self._map(function, name, "none", on_error)

    @overload
    def random_map(
        self,
        function: "Callable[[T_co, np.random.Generator], U]",
        *,
        rng: Literal["generator"] = "generator",
        globals: Literal[False] = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    @overload
    def random_map(
        self,
        function: Callable[[T_co, int], U],
        *,
        rng: Literal["seed"],
        globals: Literal[False] = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    @overload
    def random_map(
        self,
        function: Callable[[T_co, Any], U],
        *,
        rng: Literal["jax"],
        globals: Literal[False] = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    @overload
    def random_map(
        self,
        function: Callable[[T_co], U],
        *,
        rng: Literal["generator"] = "generator",
        globals: Literal[True],
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    def random_map(
        self,
        function: Callable[..., Any],
        *,
        rng: Literal["generator", "seed", "jax"] = "generator",
        globals: bool = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[Any]":
        """Return `function(element, rng)` for each element, with random numbers that don't depend on the workers.

        The random numbers derive from (the dataset's seed, the step's name, epoch, position). Adding other steps
        doesn't change them; renaming this step does.

        Args:
            function: takes the element and a `numpy.random.Generator`, which is valid during the call only; it draws
                the seeds of generators that are spawned from it. A method `apply_block(elements, rngs)` is used as in
                `map`; `rngs` is an iterator, and a generator is valid until the next one is taken.
            rng: the type of the second argument: "generator"; "seed" for a 64-bit integer; "jax" for a key of
                `jax.random` on the host, so that arrays computed from it are on the host, too. Worker processes can't
                use accelerators in JAX.
            globals: call `function(element)`, and seed `random`, NumPy's global generator and torch's, if torch is
                loaded, for the time of the call. Such a step never runs on threads.
            name: the name of the random stream. Default: the function's name, with `#2` for its second use.
            on_error: as in `map`.

        Raises:
            UsageError: an argument isn't as described.
            MissingDependencyError: rng="jax", and JAX isn't installed.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.range(3, seed=1).random_map(lambda number, rng: number + rng.random())
            >>> list(dataset) == list(dataset)
            True
        """
        if rng not in ("generator", "seed", "jax"):
            raise UsageError(f'rng must be "generator", "seed" or "jax"; got rng={rng!r}')
        if globals and rng != "generator":
            raise UsageError(
                f"globals=True hands nothing to the function, so rng={rng!r} has no use. Leave one of them out."
            )
        if globals:
            need_function("random_map(…, globals=True)", function, "the element")
        else:
            remedy = "With globals=True it is called with the element alone, and may draw from global generators"
            need_function("random_map", function, "the element", "rng", remedy=remedy)
        if rng == "jax":
            need_jax()
            return self._map(function, name, "key", on_error)
        return self._map(function, name, "globals" if globals else rng, on_error)

    def map_with_origin(
        self, function: Callable[[T_co, Origin], U], *, name: str | None = None, on_error: OnError = "raise"
    ) -> "Dataset[U]":
        """Return `function(element, origin)`; the origin has the element's epoch, position, key and seed.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(2).map_with_origin(lambda number, origin: (number, origin.epoch, origin.key)))
            [(0, 0, 0), (1, 0, 1)]
        """
        need_function("map_with_origin", function, "the element", "its origin")
        return self._map(function, name, "origin", on_error)

    def filter(
        self,
        predicate: Callable[[T_co], object],
        *,
        name: str | None = None,
        index: "str | os.PathLike[str] | None" = None,
    ) -> "Dataset[T_co]":
        """Return the elements for which `predicate(element)` is true. The result is read in order.

        With `index`, the result has positions and a length, so it can be shuffled, split and indexed. The predicate is
        then called for all elements at once, on threads, and a file keeps one bit for each element. Other ranks and
        later runs load the file; while one process computes it, the others wait. Records that are left out are not
        read again. Above a shuffle the elements are the same set in every epoch, in a new order.

        Args:
            predicate: a function of the element alone. Any worker may call it, and may call it again.
            name: for messages. Default: the function's name.
            index: the path of the file, which is written if it is missing. If it is damaged, or the source, the order
                or the code of a function has changed, it is computed again and replaced, with a warning. Changes of
                files that a function reads, and of functions in other packages, go unnoticed: remove the file then.

        Raises:
            UsageError: `index` names a file of another kind, or one that can't be written.
            GraphError: with `index`, the dataset has no positions or no end, or a step below has other elements in
                another epoch: a random map, or one with `on_error=ps.Substitute()`. Filter below that step. Or a
                source can't be distinguished from others: it needs a method `fingerprint()`.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(6).filter(lambda number: number % 2))
            [1, 3, 5]

            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     odd = ps.range(6).filter(lambda number: number % 2, index=os.path.join(folder, "odd"))
            >>> len(odd), odd[1], sorted(odd.shuffle())
            (3, 3, [1, 3, 5])
        """
        need_function("filter", predicate, "the element")
        step_name = function_name(predicate) if name is None else need_name(name)
        if index is not None:
            bits = _dataset.filter_bits(self._node, predicate, step_name, index)
            return self._new(choose(self._node, bits, f"filter({step_name}, indexed)"))
        return self._new(Filter(self._node, predicate, step_name))

    def flat_map(
        self,
        function: Callable[[T_co], Sequence[U]],
        *,
        counts: Sequence[int] | NDArray[np.integer] | None = None,
        name: str | None = None,
    ) -> "Dataset[U]":
        """Return the elements of the list `function(element)` for each element.

        Elements of one list that share an array, a tensor or another object are copied, unless its memory is read-only,
        so a function above may write to its input. A loader calls the function once for the elements of a list, as long
        as they are needed one after another; a `shuffle` above calls it again for nearly every element.

        Args:
            function: returns a list of elements, which may be empty.
            counts: the length of each list, if it is known: then the result has positions, and can be indexed and
                shuffled. Otherwise it is read in order.
            name: for messages. Default: the function's name.

        Raises:
            UsageError: there isn't one count for each element. Where elements are computed: several of one list share
                an object that can't be copied, such as an open file.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(4).flat_map(lambda number: [number] * number))
            [1, 2, 2, 3, 3, 3]
            >>> ps.range(4).flat_map(lambda number: [number] * number, counts=[0, 1, 2, 3])[-1]
            3
        """
        need_function("flat_map", function, "the element")
        step_name = self._step_name(function_name(function), name)
        if counts is None:
            return self._new(Split(self._node, _graph.FlatMap(function, step_name)))
        total = need_finite(self._node, "flat_map(…, counts=…)")
        need_fixed_order(self._node, "flat_map(…, counts=…)")
        known = Ragged(_one_each("counts", counts, total))
        return self._new(Split(self._node, _graph.FlatMap(function, step_name, known)))

    def windows(
        self,
        length: int,
        stride: int = 1,
        *,
        lengths: Sequence[int] | NDArray[np.integer],
        partial: Literal["drop", "pad"] = "drop",
        mask: str | None = None,
    ) -> "Dataset[T_co]":
        """Return windows of `length` consecutive frames of each element, an episode with a leading axis of frames.

        Windows have positions. If the source has `read_spans`, only the window's frames are read. Otherwise a loader
        computes an episode once for its windows, as long as they are needed one after another. Under a `shuffle` of
        the windows it computes the episode for nearly every window.

        Args:
            length: the number of frames in a window.
            stride: the number of frames from the start of a window to the start of the next one.
            lengths: the number of frames of each element, in order.
            partial: "drop" leaves out the last window of an episode if it runs past the end; "pad" repeats the last
                frame. With "pad" and a stride of at most `length`, each frame is in a window.
            mask: the name of a bool leaf of shape (length,) that is true for frames of data; elements must be dicts.

        Raises:
            UsageError: there isn't one length for each element.
            GraphError: the order of the episodes changes from epoch to epoch; shuffle the windows instead.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> episodes = [{"state": np.arange(5)}, {"state": np.arange(10, 12)}]
            >>> windows = ps.read(episodes).windows(3, 2, lengths=[5, 2], partial="pad")
            >>> [window["state"].tolist() for window in windows]
            [[0, 1, 2], [2, 3, 4], [10, 11, 11]]
        """
        total = need_finite(self._node, "windows()")
        need_fixed_order(self._node, "windows()")
        known = _one_each("lengths", lengths, total)
        if mask is not None:
            need_name(mask)
        table = WindowTable(known, length, stride=stride, partial=partial)
        return self._new(Split(self._node, _graph.Windows(table, mask)))

    def cache(
        self,
        where: "str | os.PathLike[str] | None" = None,
        *,
        size: int | str = "1GiB",
        version: str | None = None,
    ) -> "Dataset[T_co]":
        """Return the same elements, and keep each one that was computed, in memory or in a directory.

        A full cache keeps its elements and adds none: each element is read once an epoch, so replacing would not help.
        An element that replaces a failing one, by `ps.Substitute`, isn't kept, since it is another one in each epoch.

        Args:
            where: a local directory, which any number of processes may share; None keeps elements in memory, those of
                each process by itself. The directory must be trusted like code. Its elements are keyed by the source,
                with the paths, sizes and times of its files, the order, and the functions' code and values; after a
                change of one of them, elements are computed again. The code of other top-level modules doesn't count.
            size: the maximal size in bytes, or text such as "20GB".
            version: replaces the functions' code in the key, except their names, for functions whose versions can't be
                distinguished, such as lambdas; change it with the code.

        Raises:
            GraphError: there is a random step or an order that changes with the epoch below, which would be that of the
                first epoch in all; or, in a cache in a directory without a version, a lambda, or a source that can't be
                distinguished from others.
            UsageError: `where` isn't a local directory, or `size` or `version` has another type or form.

        Example:
            >>> import penstock as ps
            >>> calls = []
            >>> dataset = ps.range(3).map(lambda number: calls.append(number) or number).cache()
            >>> list(dataset), list(dataset), len(calls)
            ([0, 1, 2], [0, 1, 2], 3)
        """
        need_finite(self._node, "cache()")
        need_fixed_order(self._node, "cache()")
        verify_cached(self._node, on_disk=where is not None, version=version)
        limit = parse_bytes("size", size)
        identity = cache_identity(self._node, version, on_disk=where is not None)
        if where is None:
            return self._new(Cache(self._node, _storage.MemoryCache(limit, identity), "cache()"))
        store = _storage.DiskCache(local_path(where, "where"), identity, limit)
        store.open()
        return self._new(Cache(self._node, store, f"cache({os.fspath(where)!r})"))

    # Batches: consecutive elements merged into one, and taken apart again

    # First what matches where the elements' type isn't known: nothing else is a Dataset[Never].
    @overload
    def batch(
        self: "Dataset[Never]",
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: str | None = None,
    ) -> "Dataset[Any]": ...
    @overload
    def batch(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload] - a bool is an int too
        self: "Dataset[bool]", size: int, *, remainder: Remainder = "keep", drop_last: bool = False, mask: None = None
    ) -> "Dataset[NDArray[np.bool_]]": ...
    @overload
    def batch(
        self: "Dataset[int]", size: int, *, remainder: Remainder = "keep", drop_last: bool = False, mask: None = None
    ) -> "Dataset[NDArray[np.int64]]": ...
    @overload
    def batch(
        self: "Dataset[float]", size: int, *, remainder: Remainder = "keep", drop_last: bool = False, mask: None = None
    ) -> "Dataset[NDArray[np.float64]]": ...
    @overload
    def batch(
        self: "Dataset[NDArray[Scalar]]",
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: None = None,
    ) -> "Dataset[NDArray[Scalar]]": ...
    @overload
    def batch(
        self: "Dataset[str]", size: int, *, remainder: Remainder = "keep", drop_last: bool = False, mask: None = None
    ) -> "Dataset[list[str]]": ...
    @overload
    def batch(
        self: "Dataset[bytes]", size: int, *, remainder: Remainder = "keep", drop_last: bool = False, mask: None = None
    ) -> "Dataset[list[bytes]]": ...
    @overload
    def batch(
        self: "Dataset[dict[str, Any]]",
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: str | None = None,
    ) -> "Dataset[dict[str, Any]]": ...
    @overload
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: None = None,
        merge: Callable[[list[T_co]], U],
    ) -> "Dataset[U]": ...
    @overload
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: str,
        merge: Callable[[list[T_co]], object],
    ) -> "Dataset[Any]": ...
    @overload
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: str | None = None,
        merge: None = None,
    ) -> "Dataset[Any]": ...
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        drop_last: bool = False,
        mask: str | None = None,
        merge: Merge | None = None,
    ) -> "Dataset[Any]":
        """Return batches of `size` elements, stacked leaf by leaf.

        Arrays and scalars get a leading axis of `size` rows; int, float and bool become int64, float64 and bool; str
        and bytes become a list. Leaves with different dtypes or shapes are an error; nothing is promoted.

        Args:
            size: the number of rows of the *global* batch, over all ranks; at least 1.
            remainder: the form of a last batch that isn't full: "keep" makes it short, "drop" leaves it out, "pad"
                repeats its last element.
            drop_last: True is the same as `remainder="drop"`.
            mask: the name of a bool leaf, in each batch, that is true for rows of data and false for padding.
            merge: a collate function from a list of elements to a batch, instead of stacking.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        if merge is not None:
            need_function("merge", merge)
        return self._batch(size, merge or Stack(), _last(remainder, drop_last), mask)

    def padded_batch(
        self,
        size: int,
        *,
        length: int | None = None,
        fill: float = 0,
        mask: str | None = None,
        remainder: Remainder = "keep",
        drop_last: bool = False,
    ) -> "Dataset[Any]":
        """Return batches of elements whose arrays differ in length, padded along their first axis.

        Args:
            size: as in `batch`.
            length: the padded length; None pads to the longest array of each batch.
            fill: the value of padding.
            mask: the name of a bool leaf of shape (rows, length) that is true for data.
            remainder: as in `batch`.
            drop_last: as in `batch`.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> batches = ps.range(1, 4).map(lambda number: np.full(number, number)).padded_batch(3)
            >>> batches[0].tolist()
            [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        if length is not None:
            length = need_count("length", length, 1)
        return self._batch(size, Pad(length, fill, mask), _last(remainder, drop_last), None)

    def unbatch(self) -> "Dataset[Any]":
        """Return the rows of each batch as elements.

        A loader computes a batch once for its rows, as long as they are needed one after another. A `shuffle` above
        `unbatch` spreads the rows of a batch over the epoch, so nearly every row computes its whole batch again: put
        `shuffle` below `batch`.

        Rows have positions if those of the batches determine them. A short last batch that a `shuffle` of batches may
        move, or that may take the place of another one by `on_error=Substitute()`, leaves them without: they are then
        read in order. `remainder="drop"` or `remainder="pad"` makes all batches full.

        Example:
            >>> import penstock as ps
            >>> [int(row) for row in ps.range(5).batch(2).map(lambda batch: batch * 10).unbatch()]
            [0, 10, 20, 30, 40]
        """
        return self._new(Split(self._node, _graph.Unbatch()))

    def rebatch(self, size: int, *, remainder: Remainder = "keep", drop_last: bool = False) -> "Dataset[T_co]":
        """Return batches of another size, with the same rows in the same order.

        Args:
            size: as in `batch`.
            remainder: as in `batch`.
            drop_last: as in `batch`.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.range(5).batch(2).rebatch(3)]
            [[0, 1, 2], [3, 4]]
        """
        unbatched = Split(self._node, _graph.Unbatch())
        return self._new(Gather(unbatched, Batch(need_count("size", size, 1), Stack(), _last(remainder, drop_last))))

    # Lengths: elements grouped by how long they are

    def pack(
        self,
        length: int | Mapping[str, int],
        *,
        lengths: Lengths | Mapping[str, Lengths] | None = None,
        how: Literal["best_fit", "split"] = "best_fit",
        fill: float | Mapping[str, float] = 0,
        meta: Sequence[str] = (),
        long: Literal["split", "drop"] = "split",
    ) -> "Dataset[dict[str, Any]]":
        """Return sequences of `length` tokens, each of which has several documents, one after the other.

        A document is an array with one axis, or a dict of such arrays, for example of tokens and of labels. A sequence
        is a dict. It has arrays of shape (length,) with the documents' dtypes, under the documents' names, or "tokens"
        for bare arrays; and two int32 arrays with the names that Grain uses: "segment_ids" has the number of each
        token's document in the sequence, from 1, and 0 for padding; "positions" has the index of each token in its
        piece of the document, from 0. Empty documents are left out.

        Without `lengths`, documents are packed as they are read, and the sequences are read in order. 64 sequences are
        open at a time, which fills 99 % and more if the documents have mixed lengths; a state has the positions of
        their documents. With `lengths`, the sequences are planned: they have positions and a length, so `shuffle()` can
        follow, they are filled better, and all ranks have equally many.

        Args:
            length: the number of tokens in a sequence. A dict of lengths packs the leaves that it names, whose lengths
                may then differ within a document, as those of "inputs" and "targets" do; each has segment ids and
                positions of its own, such as "inputs_segment_ids".
            lengths: the number of tokens of each document, in the order of this dataset, which must be the same in
                every epoch; a dict of such if `length` is a dict.
            how: "best_fit" keeps documents whole, each in the sequence that it fills best. "split" joins documents
                end to end and cuts them every `length` tokens, so that only the last sequence has padding.
            fill: the value of padding, or a dict with the value for some of the leaves.
            meta: leaves that are not packed: a sequence has a list of its documents' values, in their order. A `batch`
                above needs a `merge`, since by itself it merges lists item by item.
            long: the treatment of documents over `length` by "best_fit": "split" cuts them every `length` tokens, if
                `length` is one number; "drop" leaves them out.

        Raises:
            UsageError: an argument isn't as described.
            GraphError: with `lengths`, this dataset has no positions, no end, or another order in every epoch.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> documents = ps.read([np.full(count, count) for count in (3, 2, 4, 1)])
            >>> for sequence in documents.pack(5):
            ...     print(sequence["tokens"], sequence["segment_ids"], sequence["positions"])
            [3 3 3 2 2] [1 1 1 2 2] [0 1 2 0 1]
            [4 4 4 4 1] [1 1 1 1 2] [0 1 2 3 0]
            >>> len(documents.pack(5, lengths=[3, 2, 4, 1]))
            2
        """
        packing = make_packing(length, how, fill, meta, long)
        if lengths is None:
            return self._new(Fold(self._node, _streaming.Pack(packing)))
        return self._new(planned_packing(self._node, packing, lengths, length))

    def combine(self, make: Callable[[], Combiner[T_co, U]], *, name: str | None = None) -> "Dataset[U]":
        """Return the elements that your own object makes of these, read in order: it packs, joins or cuts them.

        `add(element)` takes the next element and returns the list of elements that are complete, often an empty one.
        `flush()` returns the remaining elements at the end of an epoch; it isn't called if nothing is held. The result
        is read in order. Each epoch and each rank has a new object.

        A loader's state has none of the object's data. A resume makes a new object and adds the elements again that
        the old one still needed. So the result is the same if the object depends on nothing but the added elements. The
        object itself counts the last elements that it needs: in `held`, an int attribute or property. `held` is 0 if
        the object is as good as new. Otherwise it is the number of elements added since it was 0; or less, if fewer
        elements decide what follows, as the last two do for a sliding window of three. An object without `held` needs
        all elements of the epoch: then a resume computes the epoch again up to the state, which is exact and slow.

        An element has the position and key of the element that completed it, or, from `flush()`, of the last one, and
        an `ordinal` that distinguishes elements of the same list; so it has random numbers of its own in `random_map`.

        Args:
            make: returns a new object with `add` and `flush`, a `penstock.Combiner`; usually its class. The object must
                not change elements that it has returned, nor use them again: a function above may write to its input.
            name: for messages. Default: the function's name.

        Raises:
            UsageError: `make` can't be called.
            GraphError: while reading: the object has no such methods, isn't new or doesn't return a list; or its `held`
                isn't an integer of at least 0, or rises by more than one with an element.

        Example:
            >>> import penstock as ps
            >>> class Sentences:
            ...     def __init__(self):
            ...         self.words = []
            ...
            ...     @property
            ...     def held(self):
            ...         return len(self.words)
            ...
            ...     def add(self, word):
            ...         self.words.append(word)
            ...         return self.flush() if word.endswith(".") else []
            ...
            ...     def flush(self):
            ...         sentence, self.words = " ".join(self.words), []
            ...         return [sentence]
            >>> list(ps.read("It rains. We stay in. Good".split()).combine(Sentences))
            ['It rains.', 'We stay in.', 'Good']
        """
        if not callable(make):
            raise UsageError(f"combine takes a function that makes the object, such as its class; got {make!r}")
        step_name = function_name(make) if name is None else need_name(name)
        return self._new(Fold(self._node, _streaming.UserFold(make, step_name)))

    def bucket(  # noqa: PLR0913 - the verb's decisions, of which a call makes two or three
        self,
        size: str | Callable[[T_co], int],
        boundaries: Sequence[int],
        *,
        rows: int | Sequence[int] | None = None,
        budget: int | None = None,
        multiple_of: int = 1,
        lengths: Lengths | None = None,
        remainder: Literal["keep", "drop"] = "keep",
        pad: Pad | None = None,
    ) -> "Dataset[Any]":
        """Return batches of elements of about one size, padded to the boundary of their bucket.

        A bucket has elements with sizes up to its boundary, included, and above the boundary before. Its batches have
        one shape, so a compiled model has as many shapes as there are buckets; choose boundaries that suit the
        hardware, such as multiples of 128. Leaves are merged as in `padded_batch`. An element above the last boundary
        is an error: leave it out with `filter`, or cut it in `map`.

        Without `lengths`, an element waits in its bucket until the bucket has a batch, and batches are read in the
        order in which they fill. Each of several ranks has buckets of its own, and batches with its part of the rows;
        at one step the ranks' shapes differ, and one rank may end before another.

        With `lengths`, the batches are planned: they have positions and a length, in an order that derives from the
        dataset's seed; `shuffle()` makes it another one in each epoch. With one number of rows for all buckets and
        `remainder="drop"`, all ranks have rows of the same batch at every step, as with `batch`. Otherwise batches
        differ in their rows, and can't be divided among ranks.

        Args:
            size: the name of a leaf, whose length is the size, or a function that returns an element's size.
            boundaries: the largest size in each bucket, ascending; at least one.
            rows: the number of rows of the *global* batch, over all ranks; or one number for each bucket.
            budget: instead of `rows`, the number of tokens of a global batch, padding included: the batches of a bucket
                have `budget // boundary` rows, at least one.
            multiple_of: with `budget`, rows are rounded down to a multiple of this, such as the number of ranks.
            lengths: the size of each element, in the order of this dataset, which must be the same in every epoch.
            remainder: "keep" makes short batches of the elements that are left in the buckets at the end, "drop" drops
                these elements.
            pad: the fill and mask of padding, as in `padded_batch`. Default: 0, and no mask.

        Raises:
            UsageError: an argument isn't as described.
            GraphError: with `lengths`, this dataset has no positions, no end, or another order in every epoch.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> words = ps.read([np.full(count, count) for count in (1, 4, 2, 3)])
            >>> for batch in words.bucket(len, [2, 4], rows=2):
            ...     print(batch.tolist())
            [[1, 0], [2, 2]]
            [[4, 4, 4, 4], [3, 3, 3, 0]]
            >>> sorted(batch.shape for batch in words.bucket(len, [2, 4], budget=4, lengths=[1, 4, 2, 3]))
            [(1, 4), (1, 4), (2, 2)]
        """
        limits = bucket_limits(boundaries)
        counts = bucket_rows(limits, rows, budget, need_count("multiple_of", multiple_of, 1))
        bucketing = make_bucketing(size, limits, counts, pad or Pad(), keep_short=keeps_remainder(remainder))
        if lengths is None:
            return self._new(Fold(self._node, _streaming.Bucket(bucketing)))
        return self._new(planned_buckets(self._node, bucketing, lengths))

    # What the verbs share

    def _new(self, node: Node) -> "Dataset[Any]":
        """Return the dataset that a node describes; the verb's signature says what its elements are."""
        return cast("Dataset[Any]", type(self)(node))

    def _random_step(self, default: str, explicit: str | None = None, seed: int | None = None) -> tuple[str, int]:
        """Return the name of a step that draws random numbers, and the seed of its stream."""
        name = self._step_name(default, explicit)
        return name, derive(root(self._node).seed if seed is None else seed, name)

    def _step_name(self, default: str, explicit: str | None) -> str:
        """Return the step's name: the explicit one, or the default with its ordinal, counted from the source."""
        steps = chain(self._node)
        taken = {step.name for step in steps if isinstance(step, Map | Reindex | Split)}
        taken |= {step.value.random.name for step in steps if isinstance(step, Fold) and step.value.random is not None}
        if explicit is not None:
            need_name(explicit)
            if explicit in taken:
                refuse(self._node, f"two steps can't share the name {explicit!r}; give one of them another name=")
            return explicit
        names = (default if ordinal == 1 else f"{default}#{ordinal}" for ordinal in itertools.count(1))
        return next(name for name in names if name not in taken)

    def _map(
        self, function: Callable[..., Any], name: str | None, form: RandomForm, on_error: OnError
    ) -> "Dataset[Any]":
        step_name, seed = self._random_step(function_name(function), name)
        step = Map(self._node, function, step_name, seed, form, on_error)
        verify_step(step)
        return self._new(step)

    def _batch(self, size: int, merge: Merge, remainder: Remainder, mask: str | None) -> "Dataset[Any]":
        size = need_count("size", size, 1)
        return self._new(Gather(self._node, Batch(size, merge, remainder, mask)))


def _counts_from_end(index: slice) -> bool:
    """Return whether a slice's bounds depend on where the elements end."""
    backwards = index.step is not None and index.step < 0
    first, last = (index.stop, index.start) if backwards else (index.start, index.stop)
    return last is None or last < 0 or (first is not None and first < 0)


def _slice_text(index: slice) -> str:
    bounds = [index.start, index.stop] + ([] if index.step is None else [index.step])
    return f"[{':'.join('' if bound is None else str(bound) for bound in bounds)}]"


def _named_fractions(fractions: object) -> Mapping[str, float]:
    """Return the shares of a split by name; those without a name have their numbers.

    Raises:
        UsageError: they aren't shares.
    """
    if isinstance(fractions, Mapping):
        return cast("Mapping[str, float]", fractions)
    one: Any = fractions
    if isinstance(fractions, float | np.floating) and 0 < one < 1:
        share = Fraction(str(one))  # the number as it is written, so that both shares add up to 1
        return {"0": float(share), "1": float(1 - share)}
    if isinstance(fractions, list | tuple):
        return {str(number): share for number, share in enumerate(cast("Sequence[float]", fractions))}
    raise UsageError(
        "fractions must be shares by name, a list of shares, or one share between 0 and 1; got "
        f'fractions={fractions!r}. Pass such as {{"train": 0.9, "val": 0.1}}.'
    )


def _one_each(name: str, values: object, total: int) -> NDArray[Any]:
    """Return an array with one value for each element.

    Raises:
        UsageError: if it has another shape.
    """
    array = np.asarray(values)
    if array.shape != (total,):
        raise UsageError(f"{name} must be one for each of the {total} elements; got shape {array.shape}")
    return array


def _last(remainder: Remainder, drop_last: object) -> Remainder:
    """Return the form of a last batch that isn't full, given by either argument.

    Raises:
        UsageError: an argument is wrong, or they differ.
    """
    if remainder not in ("keep", "drop", "pad"):
        raise UsageError(f'remainder must be "keep", "drop" or "pad"; got remainder={remainder!r}')
    if not isinstance(drop_last, bool):
        raise UsageError(f"drop_last must be True or False; got drop_last={drop_last!r}")
    if drop_last and remainder == "pad":
        raise UsageError('drop_last=True drops the rows that remainder="pad" would fill up. Leave one of them out.')
    return "drop" if drop_last else remainder


explain_verbs(Dataset)

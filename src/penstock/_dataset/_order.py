"""The verbs of order: which elements there are, and in what order. Each is a sampler over the dataset below."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._length import is_indexable
from penstock._graph._nodes import Limit, Node, Reindex, WindowShuffle, root
from penstock._graph._rewrite import hold_order, repeated, varies_by_epoch
from penstock._graph._verify import need_count, need_finite, need_indexable, need_integer, refuse
from penstock._seeds import derive
from penstock.errors import UsageError
from penstock.sampling import (
    Balance,
    Bits,
    CheckedSampler,
    FixedEpoch,
    FixedOrder,
    Reorder,
    Repeat,
    ScalarSampler,
    Select,
    Shuffle,
    Slice,
    WeightedDraws,
    balanced_length,
    split_counts,
)
from penstock.sampling._sampler import check_sampler

if TYPE_CHECKING:
    from penstock._dataset._dataset import Dataset


def chosen(node: Node, sampler: Slice | Select | Bits, verb: str) -> Node:
    """Return the elements that a sampler chooses; above a shuffle their set is fixed, and reordered inside itself."""
    if not varies_by_epoch(node):
        return Reindex(node, sampler, verb)
    fixed = Reindex(hold_order(node), sampler, verb)
    return Reindex(fixed, Reorder(len(sampler), derive(root(node).seed, "reorder")), "")


class OrderVerbs(Verbs[T_co]):
    """Verbs that keep the elements' type."""

    __slots__ = ()

    def shuffle(self) -> "Dataset[T_co]":
        """Return the elements in a random order: a true permutation, new in every epoch, in no memory.

        Errors: a GraphError if the dataset has no positions (after `filter`) or no end.

        Example:
            >>> import penstock as ps
            >>> sorted(ps.range(5, seed=7).shuffle())
            [0, 1, 2, 3, 4]
        """
        count = need_finite(self._node, "shuffle()")
        return self._new(self._permuted(count, "shuffle", "shuffle()"))

    def reindex(self, sampler: ScalarSampler) -> "Dataset[T_co]":
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
        total = need_indexable(self._node, "reindex()", "Use reindex before it.")
        check_sampler(sampler)
        is_own = type(sampler).__module__.startswith("penstock.")
        checked = sampler if is_own else CheckedSampler(sampler, total)
        return self._new(Reindex(self._node, checked, f"reindex({type(sampler).__name__})"))

    def shard(self, index: int, count: int) -> "Dataset[T_co]":
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
        return self._new(
            chosen(self._node, Slice(index, count, len(range(index, total, count))), f"shard({index}, {count})")
        )

    def take(self, count: int) -> "Dataset[T_co]":
        """Return the first `count` elements, or all if there are fewer.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).take(3))
            [0, 1, 2]
        """
        total = need_indexable(self._node, "take()", "Use take before it.")
        count = need_count("count", count)
        return self._new(chosen(self._node, Slice(0, 1, min(count, total)), f"take({count})"))

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
        return self._new(chosen(self._node, Slice(start, 1, total - start), f"skip({count})"))

    def select(self, positions: Sequence[int] | Sequence[bool] | NDArray[np.integer | np.bool_]) -> "Dataset[T_co]":
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
        return self._new(chosen(self._node, sampler, f"select({len(sampler)} positions)"))

    def split(self, fractions: Mapping[str, float], *, seed: int = 0) -> "dict[str, Dataset[T_co]]":
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
        dealt = Reindex(self._node, FixedOrder(Shuffle(total, derive(need_integer("seed", seed), "split"))), "")
        parts: dict[str, Dataset[T_co]] = {}
        start = 0
        for name, count in split_counts(total, fractions).items():
            parts[name] = self._new(chosen(dealt, Slice(start, 1, count), f"split()[{name!r}]"))
            start += count
        return parts

    def subset(self, count: int) -> "Dataset[T_co]":
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
        shuffled = self._permuted(total, "subset", "")
        return self._new(Reindex(shuffled, Slice(0, 1, count), f"subset({count})"))

    def sample(
        self, weights: Sequence[float] | NDArray[np.integer | np.floating], count: int | None = None
    ) -> "Dataset[T_co]":
        """Return elements drawn with replacement, each as often as its weight says, others in each epoch.

        Every draw is a hash of its position over an alias table (Walker, 1977): any can be made on its own.

        Args:
            weights: one for each element, at least 0 and not all 0; they need not sum to 1.
            count: how many draws make an epoch; by default as many as there are elements.

        Raises:
            UsageError: if the weights are none.

        Example:
            >>> import penstock as ps
            >>> sorted(set(ps.range(3).sample([0, 1, 1], 20)))
            [1, 2]
        """
        total = need_finite(self._node, "sample()")
        count = total if count is None else need_count("count", count)
        drawn = np.asarray(weights)
        if drawn.shape != (total,):
            raise UsageError(f"weights must be one for each of the {total} elements; got shape {drawn.shape}")
        name, seed = self._random_step("sample")
        return self._new(Reindex(self._node, WeightedDraws(drawn, count, seed), f"sample({count})", name))

    def balance(
        self, labels: Sequence[int] | Sequence[str] | NDArray[Any], count: int | None = None
    ) -> "Dataset[T_co]":
        """Return elements of which every class has an equal share, in an order that changes with the epoch.

        As many consecutive elements as there are classes hold one of each. Every class goes through a permutation of
        its own, and then through another: within a pass no element comes twice.

        Args:
            labels: the class of each element, integers or strings.
            count: how many elements make an epoch; by default as many as give the largest class one pass.

        Raises:
            UsageError: if there isn't a label for each element.

        Example:
            >>> import penstock as ps
            >>> labels = ["cat"] * 6 + ["dog"] * 2
            >>> drawn = list(ps.range(8).balance(labels))
            >>> len(drawn), sum(number >= 6 for number in drawn)
            (12, 6)
        """
        total = need_finite(self._node, "balance()")
        classes = np.asarray(labels)
        if classes.shape != (total,):
            raise UsageError(f"labels must be one for each of the {total} elements; got shape {classes.shape}")
        count = balanced_length(classes) if count is None else need_count("count", count)
        name, seed = self._random_step("balance")
        return self._new(Reindex(self._node, Balance(classes, count, seed), f"balance({count})", name))

    def window_shuffle(self, size: int, *, name: str | None = None) -> "Dataset[T_co]":
        """Return the elements in windows of `size` consecutive ones, each window in a random order of its own.

        For what can only be read in order, as after `filter` or from a stream; `shuffle` is better where it can be. A
        loader's state holds a position in the window, and a restore computes that one window again.

        Args:
            size: elements of a window; the last may have fewer. No element is lost or comes twice.
            name: names the random stream; by default "window_shuffle".

        Example:
            >>> import penstock as ps
            >>> numbers = list(ps.range(25, seed=7).filter(lambda number: True).window_shuffle(10))
            >>> sorted(numbers) == list(range(25)), sorted(numbers[:10]) == list(range(10))
            (True, True)
        """
        size = need_count("size", size, 1)
        step_name, seed = self._random_step("window_shuffle", name)
        return self._new(WindowShuffle(self._node, size, step_name, seed))

    def limit(self, count: int) -> "Dataset[T_co]":
        """Return the first `count` elements; above a batch, that is how many steps an epoch has, on every rank.

        Where the dataset can only be read in order this is what makes all ranks end together. One of several ranks that
        runs out of data before is then an error, that says so; a single rank ends with its data.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(10).filter(lambda number: number % 2).limit(3))
            [1, 3, 5]
        """
        count = need_count("count", count)
        if is_indexable(self._node):
            return self.take(count)
        return self._new(Limit(self._node, count))

    def repeat(self, times: int | None = None, *, reshuffle: bool = True) -> "Dataset[T_co]":
        """Return the elements over and over: each pass is another epoch of what is below.

        What can only be read in order goes on over the passes' ends: batches and packed sequences are filled up with
        the next pass's elements.

        Args:
            times: how many passes make one epoch of the result; None repeats without end.
            reshuffle: False gives every pass the order and the random maps of the first.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(3).repeat(2))
            [0, 1, 2, 0, 1, 2]
        """
        if times is not None:
            times = need_count("times", times, 1)
        if not is_indexable(self._node):
            if not reshuffle:
                refuse(self._node, "reshuffle=False needs positions. Use repeat before the step that has none.")
            return self._new(repeated(self._node, times))
        total = need_finite(self._node, "repeat()")
        verb = f"repeat({'' if times is None else times})"
        return self._new(Reindex(self._node, Repeat(total, times, reshuffle=reshuffle), verb))

    def epoch(self, number: int) -> "Dataset[T_co]":
        """Return the dataset fixed at an epoch: the same order and random maps at every pass, as for validation.

        Example:
            >>> import penstock as ps
            >>> fixed = ps.range(100).shuffle().epoch(3)
            >>> list(fixed) == list(fixed.repeat(2))[100:]
            True
        """
        total = need_indexable(self._node, "epoch()", "Use epoch before it.")
        number = need_count("number", number)
        return self._new(Reindex(self._node, FixedEpoch(total, number), f"epoch({number})"))

    def _permuted(self, count: int, default_name: str, verb: str) -> Node:
        name, seed = self._random_step(default_name)
        return Reindex(self._node, Shuffle(count, seed), verb, name)

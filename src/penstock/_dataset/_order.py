"""The verbs of order: which elements there are, and in what order. Each is a sampler over the dataset below."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._nodes import Node, Reindex, foot
from penstock._graph._rewrite import hold_order, varies_by_epoch
from penstock._graph._verify import need_count, need_finite, need_indexable, need_integer
from penstock._seeds import derive
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

if TYPE_CHECKING:
    from penstock._dataset._dataset import Dataset


def chosen(node: Node, sampler: Slice | Select, verb: str) -> Node:
    """Return the elements that a sampler chooses; above a shuffle their set is fixed, and reordered inside itself."""
    if not varies_by_epoch(node):
        return Reindex(node, sampler, verb)
    fixed = Reindex(hold_order(node), sampler, verb)
    return Reindex(fixed, Reorder(len(sampler), derive(foot(node).seed, "reorder")), "")


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
        need_indexable(self._node, "reindex()", "Use reindex before it.")
        check_sampler(sampler)
        return self._new(Reindex(self._node, sampler, f"reindex({type(sampler).__name__})"))

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

    def repeat(self, times: int | None = None, *, reshuffle: bool = True) -> "Dataset[T_co]":
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

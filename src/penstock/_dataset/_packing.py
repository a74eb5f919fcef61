"""The verbs that group elements by their lengths: documents packed into sequences, elements of one size batched."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._describe import function_name
from penstock._graph._nodes import Batch, Bucket, Group, Pack, Reindex, root
from penstock._graph._verify import need_count, need_finite, need_fixed_order, need_function
from penstock._seeds import derive
from penstock.batching import Pad
from penstock.batching._bucketed_batches import BucketedBatches, plan_buckets
from penstock.batching._bucketing import Bucketing, LengthOf, PadToBucket, merges
from penstock.batching._pack import STREAMING_BINS, plan_packing
from penstock.batching._packed_documents import PackedDocuments
from penstock.batching._packing import Packing
from penstock.errors import UsageError
from penstock.sampling import Permutation, Select

if TYPE_CHECKING:
    from penstock._dataset._dataset import Dataset

Lengths: TypeAlias = Sequence[int] | NDArray[np.integer]


class PackingVerbs(Verbs[T_co]):
    """Verbs that group elements by how long they are."""

    __slots__ = ()

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
        """Return sequences of `length` tokens, each made of several documents that lie one behind the other.

        A document is an array with one axis, or a dict of such arrays, as of tokens and of labels. A sequence is a dict
        of arrays of shape (length,) with the documents' dtypes, under the documents' names, or "tokens" for bare
        arrays; and two of int32, as Grain names them: "segment_ids" has the number of each token's document within the
        sequence, from 1, and 0 for padding; "positions" has each token's place in its document's piece, from 0. Empty
        documents are left out.

        Without `lengths` documents are packed as they come, and sequences can only be read in order. 64 are open at a
        time, which fills 99 % and more where documents are of mixed lengths; a state holds the positions of their
        documents. With `lengths` all is planned beforehand: sequences have positions and a number, a `shuffle()` can
        follow, they are filled even better, and all ranks get equally many.

        Args:
            length: tokens of a sequence. A dict of lengths packs the leaves that it names, which may then differ in
                length within a document, as "inputs" and "targets" do; each has segment ids and positions of its own,
                such as "inputs_segment_ids".
            lengths: how many tokens each document has, in the order of this dataset; a dict of such where `length` is
                one. The dataset must have the same order in every epoch.
            how: "best_fit" keeps documents whole, each in the sequence that it fills best. "split" lays documents end
                to end and cuts them every `length` tokens, so that only the last sequence has padding.
            fill: the value of padding; a dict has one for some of the leaves.
            meta: leaves that are not packed: a sequence has a list of its documents' values, in their order.
            long: what "best_fit" does with documents over `length`: "split" cuts them every `length` tokens, where
                they have one length; "drop" leaves them out.

        Raises:
            UsageError: an argument isn't as described.
            GraphError: `lengths` was given, and this dataset has no positions, no end, or another order in every epoch.

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
        packing = Packing(_features(length), how, STREAMING_BINS, _fills(fill, length), _names(meta, length), long)
        _check(packing)
        if lengths is None:
            return self._new(Pack(self._node, packing))
        verb = f"pack({length!r}, lengths=…)" if how == "best_fit" else f"pack({length!r}, lengths=…, how={how!r})"
        count = need_finite(self._node, "pack(…, lengths=…)")
        need_fixed_order(self._node, "pack(…, lengths=…)")
        table = _table(lengths, packing, count)
        plan = plan_packing(table, packing.capacity, how=how, long=long)
        return self._new(Group(self._node, PackedDocuments(plan, packing, table), verb))

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

        A bucket holds elements up to its boundary, the boundary included, and above the one before. Its batches have
        one shape, so that a compiled model meets as many shapes as there are buckets; choose boundaries that suit the
        hardware, such as multiples of 128. Leaves are merged as by `padded_batch`. An element above the last boundary
        is an error: leave it out with `filter`, or cut it in `map`.

        Without `lengths` an element waits in its bucket until there are enough, and batches come in the order in which
        they fill: they can only be read in order. On several ranks each rank has buckets of its own, and batches of its
        part of the rows; at one step their shapes differ, and one rank may end before another.

        With `lengths` the batches are planned: they have positions, and a number, in an order that derives from the
        dataset's seed; `shuffle()` gives them another one in every epoch. With one number of rows for all buckets and
        `remainder="drop"` they are cut by ranks as those of `batch` are: all ranks have rows of the same batch at every
        step. Otherwise batches differ in their rows, and can't be cut by ranks.

        Args:
            size: a leaf, whose length counts, or a function that returns an element's size, as `len` does.
            boundaries: the largest size in each bucket, ascending; at least one.
            rows: of the *global* batch, over all ranks: one number, or one for each bucket.
            budget: instead of `rows`, how many tokens a global batch may hold, padding included: a bucket's batches
                have `budget // boundary` rows, at least one.
            multiple_of: with `budget`, rows are rounded down to a multiple of this, such as the number of ranks.
            lengths: the size of each element, in the order of this dataset, which must be the same in every epoch.
            remainder: whether what is left in the buckets at the end comes as short batches or is dropped.
            pad: the fill and mask of padding, as `padded_batch` has them. Default: 0, and no mask.

        Raises:
            UsageError: an argument isn't as described.
            GraphError: `lengths` was given, and this dataset has no positions, no end, or another order in every epoch.

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
        limits = _limits(boundaries)
        counts = _rows(limits, rows, budget, need_count("multiple_of", multiple_of, 1))
        bucketing = _bucketing(size, limits, counts, pad or Pad(), keep_short=_keeps(remainder))
        if lengths is None:
            return self._new(Bucket(self._node, bucketing))
        count = need_finite(self._node, "bucket(…, lengths=…)")
        need_fixed_order(self._node, "bucket(…, lengths=…)")
        sizes = _column("lengths", lengths, count)
        if sizes.size and sizes.max() > bucketing.boundaries[-1]:
            raise UsageError(
                f"lengths must not be above the last boundary, {bucketing.boundaries[-1]}; got {sizes.max()} at "
                f"position {sizes.argmax()}. Raise it, or choose the others with .select."
            )
        return self._planned_buckets(bucketing, sizes, f"bucket({_size_text(size)}, {list(boundaries)}, lengths=…)")

    def _planned_buckets(self, bucketing: Bucketing, sizes: NDArray[np.int64], verb: str) -> "Dataset[Any]":
        plan = plan_buckets(bucketing, sizes)
        seed = derive(root(self._node).seed, "bucket")
        order = Permutation(len(plan), seed).block(np.arange(len(plan))) if len(plan) else np.empty(0, np.int64)
        plan = plan.take(order)
        if bucketing.keep_short or len(set(bucketing.rows)) > 1:
            return self._new(Group(self._node, BucketedBatches(plan, bucketing), verb))
        rows = Reindex(self._node, Select(plan.document), verb)
        return self._new(Batch(rows, bucketing.rows[0], PadToBucket(bucketing), "drop"))


def _keeps(remainder: str) -> bool:
    if remainder not in ("keep", "drop"):
        raise UsageError(f'remainder must be "keep" or "drop"; got remainder={remainder!r}')
    return remainder == "keep"


def _limits(boundaries: Sequence[int]) -> tuple[int, ...]:
    """Return the boundaries of buckets, checked.

    Raises:
        UsageError: if they are not ascending.
    """
    limits = tuple(need_count("boundaries", boundary, 0) for boundary in boundaries)
    if not limits or any(one >= other for one, other in itertools.pairwise(limits)):
        raise UsageError(f"boundaries must be at least one number, ascending; got boundaries={boundaries!r}")
    return limits


def _rows(
    limits: tuple[int, ...], rows: int | Sequence[int] | None, budget: int | None, multiple_of: int
) -> tuple[int, ...]:
    """Return how many rows the batches of each bucket have.

    Raises:
        UsageError: if neither or both of `rows` and `budget` were given, or one doesn't fit.
    """
    if (rows is None) == (budget is None):
        raise UsageError(f"give rows=, or budget= in tokens, and not both; got rows={rows!r}, budget={budget!r}")
    if budget is not None:
        tokens = need_count("budget", budget, 1)
        most = [max(tokens // max(limit, 1), 1) for limit in limits]
        if min(most) < multiple_of:
            raise UsageError(
                f"multiple_of={multiple_of} rows of {limits[-1]} tokens need budget={multiple_of * limits[-1]}; got "
                f"budget={budget}. Raise it, or lower the last boundary."
            )
        return tuple(count - count % multiple_of for count in most)
    counts = [rows] * len(limits) if isinstance(rows, SupportsIndex) else list(rows or ())
    if len(counts) != len(limits):
        raise UsageError(f"rows must be one number, or one for each of the {len(limits)} buckets; got rows={rows!r}")
    return tuple(need_count("rows", count, 1) for count in counts)


def _bucketing(
    size: str | Callable[[Any], int], limits: tuple[int, ...], rows: tuple[int, ...], pad: Pad, *, keep_short: bool
) -> Bucketing:
    """Return what the step is told.

    Raises:
        UsageError: if `pad` has a length.
    """
    if not isinstance(size, str):
        need_function("bucket", size)
    if pad.length is not None:
        raise UsageError(f"batches are as long as their bucket's boundary; got pad={pad!r}. Leave its length out.")
    return Bucketing(LengthOf(size) if isinstance(size, str) else size, limits, rows, merges(limits, pad), keep_short)


def _size_text(size: str | Callable[[Any], int]) -> str:
    return repr(size) if isinstance(size, str) else function_name(size)


def _features(length: int | Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if not isinstance(length, Mapping):
        return (("", need_count("length", length, 1)),)
    if not length or not all(length):
        raise UsageError(f"length must be a number of tokens, or a dict from leaves to such numbers; got {length!r}")
    return tuple((name, need_count(f"length[{name!r}]", room, 1)) for name, room in length.items())


def _fills(fill: float | Mapping[str, float], length: int | Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    if not isinstance(fill, Mapping):
        return (("", fill),)
    if isinstance(length, Mapping) and not set(fill) <= set(length):
        strange = [name for name in fill if name not in length]
        raise UsageError(f"fill must be for leaves that are packed, {list(length)}; got fill for {strange}")
    return tuple(fill.items())


def _names(meta: Sequence[str], length: int | Mapping[str, int]) -> tuple[str, ...]:
    names = tuple(meta)
    if isinstance(meta, str) or not all(map(_is_text, names)):
        raise UsageError(f'meta must be a sequence of names, such as meta=["url"]; got meta={meta!r}')
    both = [name for name in names if isinstance(length, Mapping) and name in length]
    if both:
        raise UsageError(f"a leaf is either packed or carried along; got {both} in length and in meta")
    return names


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def _check(packing: Packing) -> None:
    if packing.how not in ("best_fit", "split"):
        raise UsageError(f'how must be "best_fit" or "split"; got how={packing.how!r}')
    if packing.long not in ("split", "drop"):
        raise UsageError(f'long must be "split" or "drop"; got long={packing.long!r}')
    if packing.how == "split" and not packing.is_shared:
        raise UsageError(
            f'how="split" cuts documents, which need one length; got length={dict(packing.features)}. Use one number, '
            'or how="best_fit".'
        )
    if packing.how == "split" and packing.long == "drop":
        raise UsageError('long="drop" is for how="best_fit"; with how="split" no document is too long')


def _table(lengths: Lengths | Mapping[str, Lengths], packing: Packing, count: int) -> NDArray[np.int64]:
    """Return the lengths of `count` documents: int64 (documents,), or (documents, features).

    Raises:
        UsageError: they aren't.
    """
    if isinstance(lengths, Mapping) != (not packing.is_shared):
        raise UsageError(
            "lengths must be a dict where length is one, with the same names, and an array where it is a number; got "
            f"{type(lengths).__name__} for length={packing.capacity if packing.is_shared else dict(packing.features)}"
        )
    if not isinstance(lengths, Mapping):
        return _column("lengths", lengths, count)
    names = [name for name, _ in packing.features]
    if set(lengths) != set(names):
        raise UsageError(f"lengths must have the names that length has, {names}; got {list(lengths)}")
    return np.stack([_column(f"lengths[{name!r}]", lengths[name], count) for name in names], axis=1)


def _column(name: str, values: Lengths, count: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise UsageError(f"{name} must be whole numbers; got dtype {array.dtype}")
    if array.shape != (count,):
        raise UsageError(f"{name} must have one value for each of the {count} elements; got shape {array.shape}")
    if array.size and array.min() < 0:
        raise UsageError(f"{name} must not be negative; got {array.min()} at position {array.argmin()}")
    column = array.astype(np.int64)
    column.flags.writeable = False
    return column

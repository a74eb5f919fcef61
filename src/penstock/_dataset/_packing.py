"""Checks of the arguments of `pack` and `bucket`, and the nodes of both verbs if the lengths are given."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._graph import (
    Batch,
    Gather,
    Node,
    Planned,
    Reindex,
    function_name,
    need_count,
    need_finite,
    need_fixed_order,
    need_function,
    root,
)
from penstock._seeds import derive
from penstock.batching import (
    STREAMING_BINS,
    BucketedBatches,
    Bucketing,
    LengthOf,
    PackedDocuments,
    Packing,
    Pad,
    PadToBucket,
    merges,
    plan_buckets,
    plan_packing,
)
from penstock.errors import UsageError
from penstock.sampling import Permutation, Select, check_int64

_MAX_PIECES: Final = 1 << 36  # of documents in one plan, which takes 24 bytes for each
Lengths: TypeAlias = Sequence[int] | NDArray[np.integer]


def keeps_remainder(remainder: str) -> bool:
    """Return whether `bucket` keeps the last, short batch of each bucket.

    Raises:
        UsageError: `remainder` is neither "keep" nor "drop".
    """
    if remainder not in ("keep", "drop"):
        raise UsageError(f'remainder must be "keep" or "drop"; got remainder={remainder!r}')
    return remainder == "keep"


def _several(values: int | Iterable[int] | None) -> list[int] | None:
    """Return several values as a list; None for one value, such as a number or a text."""
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        return None
    return None if getattr(values, "ndim", 1) == 0 else list(values)


def bucket_limits(boundaries: Sequence[int]) -> tuple[int, ...]:
    """Return the boundaries of buckets as a tuple.

    Raises:
        UsageError: there are none, or they aren't integers of at least 0 in ascending order.
    """
    limits = tuple(need_count("boundaries", boundary, 0) for boundary in _several(boundaries) or ())
    if not limits or any(one >= other for one, other in itertools.pairwise(limits)):
        raise UsageError(f"boundaries must be at least one number, ascending; got boundaries={boundaries!r}")
    return limits


def bucket_rows(
    limits: tuple[int, ...], rows: int | Sequence[int] | None, budget: int | None, multiple_of: int
) -> tuple[int, ...]:
    """Return for each bucket the number of rows of its batches.

    Raises:
        UsageError: both or neither of `rows` and `budget` were given, or the given one doesn't fit the buckets.
    """
    if (rows is None) == (budget is None):
        raise UsageError(f"give rows=, or budget= in tokens, and not both; got rows={rows!r}, budget={budget!r}")
    if budget is not None:
        tokens = need_count("budget", budget, 1)
        most = [max(tokens // max(limit, 1), 1) for limit in limits]
        if min(most) < multiple_of:
            raise UsageError(
                f"multiple_of={multiple_of} rows of {limits[-1]} tokens need budget={multiple_of * limits[-1]}; got "
                f"budget={budget}. Raise the budget, or lower the last boundary."
            )
        return tuple(count - count % multiple_of for count in most)
    several = _several(rows)
    counts = [rows] * len(limits) if several is None else several
    if len(counts) != len(limits):
        raise UsageError(f"rows must be one number, or one for each of the {len(limits)} buckets; got rows={rows!r}")
    return tuple(need_count("rows", count, 1) for count in counts)


def make_bucketing(
    size: str | Callable[[Any], int], limits: tuple[int, ...], rows: tuple[int, ...], pad: Pad, *, keep_short: bool
) -> Bucketing:
    """Return the arguments of `bucket` as a value.

    Raises:
        UsageError: `pad` has a length.
    """
    if not isinstance(size, str):
        need_function("bucket", size)
    if pad.length is not None:
        raise UsageError(f"batches are as long as their bucket's boundary; got pad={pad!r}. Leave its length out.")
    return Bucketing(LengthOf(size) if isinstance(size, str) else size, limits, rows, merges(limits, pad), keep_short)


def planned_buckets(node: Node, bucketing: Bucketing, lengths: Lengths) -> Node:
    """Return the node of batches of a node's elements, which are planned from the elements' lengths.

    Raises:
        UsageError: the lengths don't fit.
        GraphError: the node has no positions, no end, or another order in every epoch.
    """
    count = need_finite(node, "bucket(…, lengths=…)")
    need_fixed_order(node, "bucket(…, lengths=…)")
    sizes = _column("lengths", lengths, count)
    limits = bucketing.boundaries
    if sizes.size and sizes.max() > limits[-1]:
        raise UsageError(
            f"lengths must not be above the last boundary, {limits[-1]}; got {sizes.max()} at position "
            f"{sizes.argmax()}. Raise the boundary, or leave such elements out with .select."
        )
    size = repr(bucketing.size.leaf) if isinstance(bucketing.size, LengthOf) else function_name(bucketing.size)
    verb = f"bucket({size}, {list(limits)}, lengths=…)"
    plan = plan_buckets(bucketing, sizes)
    seed = derive(root(node).seed, "bucket")
    order = Permutation(len(plan), seed).block(np.arange(len(plan))) if len(plan) else np.empty(0, np.int64)
    plan = plan.take(order)
    if bucketing.keep_short or len(set(bucketing.rows)) > 1:
        return Gather(node, Planned(BucketedBatches(plan, bucketing), verb))
    rows = Reindex(node, Select(plan.document), verb)
    return Gather(rows, Batch(bucketing.rows[0], PadToBucket(bucketing), "drop"))


def make_packing(
    length: int | Mapping[str, int],
    how: Literal["best_fit", "split"],
    fill: float | Mapping[str, float],
    meta: Sequence[str],
    long: Literal["split", "drop"],
) -> Packing:
    """Return the arguments of `pack` as a value.

    Raises:
        UsageError: one of them isn't as `Dataset.pack` describes it.
    """
    packing = Packing(_features(length), how, STREAMING_BINS, _fills(fill, length), _names(meta, length), long)
    _check(packing)
    return packing


def planned_packing(
    node: Node, packing: Packing, lengths: Lengths | Mapping[str, Lengths], length: int | Mapping[str, int]
) -> Node:
    """Return the node of sequences of a node's documents, which are planned from the documents' lengths.

    Raises:
        UsageError: the lengths don't fit.
        GraphError: the node has no positions, no end, or another order in every epoch.
    """
    how = packing.how
    verb = f"pack({length!r}, lengths=…)" if how == "best_fit" else f"pack({length!r}, lengths=…, how={how!r})"
    count = need_finite(node, "pack(…, lengths=…)")
    need_fixed_order(node, "pack(…, lengths=…)")
    table = _table(lengths, packing, count)
    _need_plannable(table, packing)
    plan = plan_packing(table, packing.capacity, how=how, long=packing.long)
    return Gather(node, Planned(PackedDocuments(plan, packing, table), verb))


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
        raise UsageError(f"a leaf is either packed or listed; got {both} in length and in meta")
    return names


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def _check(packing: Packing) -> None:
    listed = [name for name, _ in packing.fill if name in packing.meta]
    if listed:
        raise UsageError(f"fill must be for leaves that are packed; got fill for {listed}, which meta names. Omit it.")
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
        UsageError: they have another form or shape.
    """
    if isinstance(lengths, Mapping) != (not packing.is_shared):
        raise UsageError(
            "lengths must be an array if length is a number, or a dict if length is a dict, with the same names; got "
            f"{type(lengths).__name__} for length={packing.capacity if packing.is_shared else dict(packing.features)}"
        )
    if not isinstance(lengths, Mapping):
        return _column("lengths", lengths, count)
    names = [name for name, _ in packing.features]
    if set(lengths) != set(names):
        raise UsageError(f"lengths must have the names that length has, {names}; got {list(lengths)}")
    return np.stack([_column(f"lengths[{name!r}]", lengths[name], count) for name in names], axis=1)


def _need_plannable(table: NDArray[np.int64], packing: Packing) -> None:
    """Check that the documents are cut into no more pieces than a plan can hold.

    Raises:
        UsageError: there are more.
    """
    if packing.long == "drop" or not table.size or int(table.max()) * len(table) <= _MAX_PIECES:
        return
    pieces = (table / np.array(packing.capacity)).reshape(len(table), -1).max(axis=1)
    if pieces.sum() > _MAX_PIECES:
        raise UsageError(
            f"lengths must be cut into at most 2**36 pieces of length={packing.capacity}; got "
            f"{table[pieces.argmax()].tolist()} at position {pieces.argmax()}. Correct the lengths."
        )


def _column(name: str, values: Lengths, count: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind == "U":
        raise UsageError(
            f"{name} must be the length of each element; got {values!r}. Some sources know them: "
            'lengths=tokens.lengths() of Tokens, lengths=table.lengths("column") of Parquet'
        )
    if array.dtype.kind not in "iu" and array.size:
        raise UsageError(f"{name} must be whole numbers; got dtype {array.dtype}")
    if array.shape != (count,):
        raise UsageError(f"{name} must have one value for each of the {count} elements; got shape {array.shape}")
    if array.size and array.min() < 0:
        raise UsageError(f"{name} must not be negative; got {array.min()} at position {array.argmin()}")
    check_int64(name, array)
    column = array.astype(np.int64)
    column.flags.writeable = False
    return column

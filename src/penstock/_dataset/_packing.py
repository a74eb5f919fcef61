"""The verbs that group elements by their lengths: documents packed into sequences, elements of one size batched."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._nodes import Group, Pack
from penstock._graph._verify import need_count, need_finite, need_fixed_order
from penstock.batching._pack import STREAMING_BINS, plan_packing
from penstock.batching._packed_documents import PackedDocuments
from penstock.batching._packing import Packing
from penstock.errors import UsageError

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


def _features(length: int | Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if not isinstance(length, Mapping):
        return (("", need_count("length", length, 1)),)
    if not length or not all(isinstance(name, str) and name for name in length):
        raise UsageError(f"length must be a number of tokens, or a dict from leaves to such numbers; got {length!r}")
    return tuple((name, need_count(f"length[{name!r}]", room, 1)) for name, room in length.items())


def _fills(fill: float | Mapping[str, float], length: int | Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    if not isinstance(fill, Mapping):
        return (("", fill),)
    strange = [name for name in fill if isinstance(length, Mapping) and name not in length]
    if strange:
        raise UsageError(f"fill must be for leaves that are packed, {list(length)}; got fill for {strange}")
    return tuple(fill.items())


def _names(meta: object, length: int | Mapping[str, int]) -> tuple[str, ...]:
    names = tuple(meta) if isinstance(meta, Sequence) and not isinstance(meta, str) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f'meta must be a sequence of names, such as meta=["url"]; got meta={meta!r}')
    both = [name for name in names if isinstance(length, Mapping) and name in length]
    if both:
        raise UsageError(f"a leaf is either packed or carried along; got {both} in length and in meta")
    return tuple(str(name) for name in names)


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
    """Return the lengths of `count` documents: int64 (documents,), or (documents, features)."""
    if isinstance(lengths, Mapping) != (not packing.is_shared):
        raise UsageError(
            "lengths must be a dict where length is one, with the same names, and an array where it is a number; got "
            f"{type(lengths).__name__} for length={dict(packing.features) if not packing.is_shared else packing.capacity}"
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

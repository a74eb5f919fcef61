"""The packing of documents into sequences of a fixed length: its arguments, the documents, and planned sequences.

A document is an array of tokens with one axis, or a dict of such arrays, its *features*, and of *meta* leaves. All
documents of a dataset have one *form*: the same leaves, and a dtype for each feature.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._tree import is_array
from penstock.batching._grouping import NOTE_ON_SUBSTITUTES, Long, PackingPlan
from penstock.batching._joined import JoinedElements
from penstock.batching._pack import How, JoinedDocuments, fill_rows, padding_token
from penstock.errors import GraphError, InternalError, UsageError

Element: TypeAlias = Any  # user data
BARE: Final = "tokens"
"""The name of the feature of documents that are bare arrays."""


_MAX_ROWS: Final = 64
_BLOCK_BYTES: Final = 1 << 21
_CONVERSIONS: Final[dict[type[object], str]] = {
    list: "Convert it in .map, as in np.asarray(tokens, np.int32)",
    str: "Convert it in .map, by a tokenizer and np.asarray",
}
_dtype = attrgetter("dtype")
_ndim = attrgetter("ndim")


@frozen
class Packing:
    """The arguments of a `pack` step.

    Attributes:
        features: the name of each packed leaf, and the number of its values in a sequence. A single empty name is used
            for documents with one length: bare arrays, or dicts in which all leaves but those of `meta` are packed.
        how: "best_fit" puts whole documents where they fit best, "split" concatenates and cuts them.
        bins: the number of sequences that are open at once, for "best_fit".
        fill: names of features and the values that pad them. The empty name covers all others; without it they get 0.
        meta: the leaves that are not packed; a sequence has a list of its documents' values.
        long: whether documents longer than a sequence are split or dropped.
    """

    features: tuple[tuple[str, int], ...]
    how: How = "best_fit"
    bins: int = 64
    fill: tuple[tuple[str, float], ...] = ()
    meta: tuple[str, ...] = ()
    long: Long = "split"

    @property
    def is_shared(self) -> bool:
        """Whether all features have the same segments, so that one pair of segment ids and positions describes them."""
        return self.features[0][0] == ""

    @property
    def capacity(self) -> int | list[int]:
        """The number of tokens in a sequence; a list for features with lengths of their own."""
        return self.features[0][1] if self.is_shared else [room for _, room in self.features]

    def padding(self, feature: str) -> float:
        """Return the value that pads a feature."""
        fills = dict(self.fill)
        return fills.get(feature, fills.get("", 0))


@frozen
class PackedDocuments:
    """The sequences of a planned packing. Each can be computed alone.

    Attributes:
        plan: the pieces of each sequence; a document's number is its position.
        packing: the arguments of the packing.
        lengths: the planned lengths, int64 (documents,) or (documents, features); they determine the plan.
    """

    plan: PackingPlan
    packing: Packing
    lengths: NDArray[np.int64] = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.plan)

    def members(self, groups: NDArray[np.int64], /) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of documents of each sequence, and the positions of all of them."""
        part = self.plan.take(groups)
        return np.diff(part.bounds), part.document

    def merge(self, groups: NDArray[np.int64], elements: Sequence[Any], /) -> list[Any]:
        """Return the sequences of these documents.

        Raises:
            GraphError: a document can't be packed, or its length differs from the planned one.
        """
        if not len(groups):
            return []
        plan = self.plan.take(groups)
        form = form_of(self.packing, elements[0])
        found, planned = lengths_of(self.packing, form, elements), self.lengths[plan.document]
        if not np.array_equal(found, planned):
            number = int((found != planned).reshape(len(found), -1).any(axis=1).argmax())
            raise GraphError(
                "documents must have the lengths that pack() was given; the one at position "
                f"{plan.document[number]} has {found[number].tolist()}, the plan {planned[number].tolist()}. Pass the "
                f"lengths of the dataset before pack(), in its order. {NOTE_ON_SUBSTITUTES}"
            )
        bounds = plan.bounds.tolist()
        made: list[Any] = []
        rows = max_rows(self.packing, form)
        for first, stop in row_blocks(len(groups), rows, rows):
            documents = elements[bounds[first] : bounds[stop]]
            made += rows_of(filled(self.packing, form, plan.span(first, stop), documents))
        return made

    def fingerprint(self) -> str:
        """Return a text that identifies this packing."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.plan.document, self.plan.offset, self.plan.length, self.plan.bounds):
            digest.update(np.ascontiguousarray(array).data)
        return f"packed {self.packing!r} {digest.hexdigest()}"


class Form(NamedTuple):
    """The properties that all documents of a dataset share."""

    features: tuple[str, ...]
    dtypes: tuple[np.dtype[Any], ...]
    leaves: int
    """The number of leaves, with the meta leaves; 0 for bare arrays."""


def form_of(packing: Packing, document: Element) -> Form:
    """Return the form of a document.

    Raises:
        GraphError: it can't be packed.
    """
    if not _is_dict(document):
        if not packing.is_shared or packing.meta:
            named = [name for name, _ in packing.features if name] + list(packing.meta)
            raise GraphError(
                f"documents must be dicts with the leaves {named}; got a {type(document).__qualname__}. "
                "Return a dict from .map, or name no leaves."
            )
        _check_fill(packing, (BARE,))
        return Form((BARE,), (_dtype_of(packing, BARE, document, "a document"),), 0)
    features = _features(packing, document)
    _check_fill(packing, features)
    dtypes = tuple(_dtype_of(packing, name, document[name], f"the leaf {name!r}") for name in features)
    return Form(features, dtypes, len(document))


def _check_fill(packing: Packing, features: tuple[str, ...]) -> None:
    strange = [name for name, _ in packing.fill if name and name not in features]
    if strange:
        raise GraphError(
            f"fill must be for leaves that are packed, {list(features)}; got fill for {strange}. Fix the names."
        )


def _dtype_of(packing: Packing, name: str, tokens: object, what: str) -> np.dtype[Any]:
    """Return the dtype of a document's tokens, and check that the padding is a value of it.

    Raises:
        GraphError: the tokens are no array of one axis, or the padding is no value of their dtype.
    """
    dtype = _array(tokens, what).dtype
    if dtype.hasobject:
        raise GraphError(
            f"pack() takes arrays of numbers; {what} has Python objects. Convert it in .map, as in np.asarray(tokens, "
            "np.int32), or name other leaves in meta=."
        )
    fill = packing.padding(name)
    try:
        padding_token(fill, dtype)
    except UsageError:
        raise GraphError(
            f"fill must be a value of {dtype}, the dtype of {name!r}; got {fill!r}. Choose another."
        ) from None
    return dtype


def _features(packing: Packing, document: dict[Any, Any]) -> tuple[str, ...]:
    missing = [name for name in packing.meta if name not in document]
    if packing.is_shared:
        features = tuple(name for name in document if name not in packing.meta)
        unknown: list[Any] = []
    else:
        features = tuple(name for name, _ in packing.features)
        missing += [name for name in features if name not in document]
        unknown = [name for name in document if name not in features and name not in packing.meta]
    if missing:
        raise GraphError(f"documents must have the leaves {missing}; got a dict of {list(document)}. Fix the names.")
    if unknown:
        raise GraphError(
            f"the leaves {unknown} of documents are neither packed nor in meta=. Pass a length for them, name them in "
            "meta=, or remove them in .map."
        )
    made = {name for names in extra_names(packing, features) for name in names}
    if not features or made & set(document):
        raise GraphError(
            f"documents need at least one leaf to pack, and none named {sorted(made)}, which packing adds; got a dict "
            f"of {list(document)}. Rename leaves in .map."
        )
    return features


def extra_names(packing: Packing, features: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names of the segment ids and positions that packing adds: a pair for each feature, or one for all.

    They are those that Grain uses.
    """
    if packing.is_shared:
        return [("segment_ids", "positions")]
    return [(f"{name}_segment_ids", f"{name}_positions") for name in features]


def lengths_of(packing: Packing, form: Form, documents: Sequence[Element]) -> NDArray[np.int64]:
    """Return the lengths of documents: int64 (documents,), or (documents, features) if features have their own.

    Raises:
        GraphError: one of them has another form.
    """
    lengths = _joined_lengths(form, documents) or _lengths(form, documents)
    if not packing.is_shared:
        table = np.stack(lengths, axis=1)
        _check_whole(packing, table)
        return table
    for name, other in zip(form.features[1:], lengths[1:], strict=True):
        if not np.array_equal(lengths[0], other):
            number = int((lengths[0] != other).argmax())
            raise GraphError(
                f"all packed leaves of a document must have one length; got {lengths[0][number]} for "
                f"{form.features[0]!r} and {other[number]} for {name!r}. Pass pack() a length for each leaf, as in "
                f"pack({{{form.features[0]!r}: …, {name!r}: …}}), or name one of them in meta=."
            )
    return lengths[0]


def joined_documents(form: Form, documents: Sequence[Element]) -> list[JoinedDocuments] | None:
    """Return the arrays of each feature, if the documents are joined and have the form."""
    if not isinstance(documents, JoinedElements) or documents.is_used:
        return None
    if len(documents.names or ()) != form.leaves:
        return None
    leaves = dict(zip(documents.names or (BARE,), documents.leaves, strict=True))
    found: list[JoinedDocuments] = []
    for name, dtype in zip(form.features, form.dtypes, strict=True):
        leaf = leaves.get(name)
        if not isinstance(leaf, JoinedDocuments) or leaf.tokens.dtype != dtype:
            return None
        found.append(leaf)
    return found


def _joined_lengths(form: Form, documents: Sequence[Element]) -> list[NDArray[np.int64]] | None:
    """Return the lengths of each feature, if the documents are joined and have the form."""
    found = joined_documents(form, documents)
    return None if found is None else [np.diff(leaf.starts) for leaf in found]


def _lengths(form: Form, documents: Sequence[Element]) -> list[NDArray[np.int64]]:
    columns = columns_of(form, documents)
    for name, column, dtype in zip(form.features, columns, form.dtypes, strict=True):
        if not (_are_arrays(column) and set(map(_ndim, column)) <= {1} and _have_dtype(column, dtype)):
            _refuse(column, dtype, name)
    return [np.fromiter(map(len, column), np.int64, len(column)) for column in columns]


def columns_of(form: Form, documents: Sequence[Element]) -> list[list[Any]]:
    """Return the arrays of each feature.

    Raises:
        GraphError: a document has other leaves.
    """
    if form.leaves == 0:
        return [list(documents)]
    try:
        if set(map(len, documents)) <= {form.leaves} and all(map(_is_dict, documents)):
            return [[document[name] for document in documents] for name in form.features]
    except (KeyError, TypeError):
        pass
    odd = next(d for d in documents if not _is_dict(d) or len(d) != form.leaves or not set(form.features) <= set(d))
    raise GraphError(
        f"all documents must have the same leaves; the first has {form.leaves} with {list(form.features)} among them, "
        f"and another is {_described(odd)}. Make them alike in .map."
    )


def filled(
    packing: Packing, form: Form, plan: PackingPlan, documents: Sequence[Element], columns: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the sequences of a plan as columns: arrays with a row for each sequence, and lists for meta leaves.

    Args:
        packing: the arguments of the packing.
        form: the form of the documents.
        plan: the plan; its documents are indices into `documents`.
        documents: documents of that form.
        columns: arrays of `empty_columns` to fill; None for new ones.

    Raises:
        UsageError: the padding is no value of a feature's dtype.
    """
    columns = empty_columns(packing, form, len(plan)) if columns is None else columns
    extras = extra_names(packing, form.features)
    read = joined_documents(form, documents) or columns_of(form, documents)
    for number, (name, arrays) in enumerate(zip(form.features, read, strict=True)):
        ids, positions = extras[number] if number < len(extras) else ("", "")
        fill_rows(
            plan if packing.is_shared else plan.feature(number),
            arrays,
            out=columns[name],
            padding=packing.padding(name),
            segment_ids=columns.get(ids),
            positions=columns.get(positions),
        )
    bounds = plan.bounds.tolist()
    for name in packing.meta:
        values = [documents[number][name] for number in plan.document.tolist()]
        columns[name] = [values[first:last] for first, last in itertools.pairwise(bounds)]
    return columns


def empty_columns(packing: Packing, form: Form, rows: int) -> dict[str, Any]:
    """Return memory for sequences: new arrays, whose contents are undefined."""
    columns: dict[str, Any] = {}
    extras = extra_names(packing, form.features)
    rooms = dict(packing.features)
    for number, name in enumerate(form.features):
        room = rooms.get(name, rooms.get("", 0))
        columns[name], ids, positions = _empty_rows(rows, room, form.dtypes[number], adds=number < len(extras))
        if ids is not None and positions is not None:
            columns |= zip(extras[number], (ids, positions), strict=True)
    return columns


def rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each sequence of the columns as a dict of its rows."""
    names = tuple(columns)
    if len(names) == 3:  # one feature: the same result as below, but faster
        first, second, third = names
        return [{first: one, second: two, third: three} for one, two, three in zip(*columns.values(), strict=True)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _empty_rows(
    count: int, room: int, dtype: np.dtype[Any], *, adds: bool
) -> tuple[NDArray[Any], NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Return memory for the tokens of `count` rows and, if `adds`, for their segment ids and positions.

    All three are in one piece of memory. Smaller pieces would be returned to the system, and mapped again for every
    block.
    """
    shape, size = (count, room), 4 * count * room
    if not adds:
        return np.empty(shape, dtype), None, None
    memory = np.empty(2 * size + count * room * dtype.itemsize, np.uint8)
    ids, positions = (memory[start : start + size].view(np.int32).reshape(shape) for start in (0, size))
    return memory[2 * size :].view(dtype).reshape(shape), ids, positions


def max_rows(packing: Packing, form: Form) -> int:
    """Return the number of sequences that may share memory: few, since a sequence that is kept keeps all of it."""
    return min(max(_BLOCK_BYTES // max(row_bytes(packing, form), 1), 1), _MAX_ROWS)


def row_bytes(packing: Packing, form: Form) -> int:
    """Return about how many bytes a sequence has."""
    rooms = dict(packing.features)
    widths = (rooms.get(name, rooms.get("", 0)) for name in form.features)
    return sum(width * (dtype.itemsize + 8) for width, dtype in zip(widths, form.dtypes, strict=True))


def row_blocks(count: int, rows: int, first: int) -> list[tuple[int, int]]:
    """Return the spans of `count` sequences that share memory: first one of `first` sequences, then of `rows`."""
    cuts = [0, *range(min(first, count), count, rows), count] if count else []
    return [(start, stop) for start, stop in itertools.pairwise(cuts) if start < stop]


def _check_whole(packing: Packing, lengths: NDArray[np.int64]) -> None:
    """Check that no document with several lengths would have to be split.

    Raises:
        GraphError: one would.
    """
    capacity = packing.capacity
    too_long = (lengths > capacity).any(axis=1)
    if packing.long == "split" and too_long.any():
        raise GraphError(
            "a document whose leaves have lengths of their own can't be split; got "
            f"{lengths[too_long.argmax()].tolist()} "
            f'for {dict(packing.features)}. Pass long="drop", or shorten it in .map.'
        )


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _array(value: object, what: str) -> NDArray[Any]:
    if not is_array(value) or value.ndim != 1:
        remedy = _CONVERSIONS.get(type(value), "Convert it in .map")
        raise GraphError(
            f"pack() takes arrays with one axis; {what} is {_described(value)}. {remedy}, or name other leaves in "
            "meta=."
        )
    return value


def _are_arrays(column: list[Any]) -> bool:
    kinds = set(map(type, column))
    return kinds <= {np.ndarray} or all(issubclass(kind, np.ndarray) for kind in kinds)


def _have_dtype(column: list[Any], dtype: np.dtype[Any]) -> bool:
    dtypes: list[Any] = list(map(_dtype, column))
    return set(map(id, dtypes)) <= {id(dtype)} or all(one == dtype for one in dtypes)


def _refuse(column: list[Any], dtype: np.dtype[Any], name: str) -> NoReturn:
    """Raise the error for the first value that is no array, or has another dtype.

    Raises:
        GraphError: the error for that value.
        InternalError: every value is such an array.
    """
    for value in column:
        if _array(value, f"{name!r} of a document").dtype != dtype:
            raise GraphError(
                f"all documents must have one dtype; {name!r} is {dtype} in the first and {value.dtype} in another. "
                "Convert them in .map."
            )
    raise InternalError("all of these documents are valid")


def _described(value: object) -> str:
    if is_array(value):
        return f"an array of shape {value.shape}"
    return f"a dict of {list(value)}" if _is_dict(value) else f"a {type(value).__qualname__}"

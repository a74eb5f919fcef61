"""The packing of documents into sequences of a fixed length: its arguments, the documents, and planned sequences.

A document is an array of tokens with one axis, or a dict of such arrays, its *features*, and of *meta* leaves. All
documents of a dataset have one *form*: the same leaves, and a dtype for each feature.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple, SupportsIndex, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._tensors import is_tensor
from penstock._tree import is_array, is_masked
from penstock.batching._grouping import NOTE_ON_SUBSTITUTES, Long, PackingPlan
from penstock.batching._joined import JoinedElements
from penstock.batching._pack import Documents, How, JoinedDocuments, Rows, fill_rows, open_documents, padding_token
from penstock.errors import GraphError, UsageError

Element: TypeAlias = Any  # user data
Columns: TypeAlias = dict[str, NDArray[Any]]
BARE: Final = "tokens"
"""The name of the feature of documents that are bare arrays."""


_MAX_ROWS: Final = 64
_BLOCK_BYTES: Final = 1 << 21
_CONVERSIONS: Final[dict[type[object], str]] = {
    list: "Convert it in .map, as in np.asarray(tokens, np.int32)",
    str: "Convert it in .map, by a tokenizer and np.asarray",
}


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
        return self.plan.members(groups)

    def merge(self, groups: NDArray[np.int64], elements: Sequence[Any], /) -> Sequence[Any]:
        """Return the sequences of these documents, which are filled when they are first used.

        Raises:
            GraphError: a document can't be packed, or its length differs from the planned one.
        """
        if not len(groups):
            return []
        plan = self.plan.take(groups)
        form = form_of(self.packing, elements[0])
        documents = documents_of(form, elements)
        found, planned = lengths_of(self.packing, form, documents), self.lengths[plan.document]
        if not np.array_equal(found, planned):
            number = int((found != planned).reshape(len(found), -1).any(axis=1).argmax())
            raise GraphError(
                "documents must have the lengths that pack() was given; the one at position "
                f"{plan.document[number]} has {found[number].tolist()}, the plan {planned[number].tolist()}. Pass the "
                f"lengths of the dataset before pack(), in its order. {NOTE_ON_SUBSTITUTES}"
            )
        return PlannedRows(self.packing, form, plan.by_piece(), documents, elements)

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


class PlannedRows(Sequence[Element]):
    """Sequences of a plan, which are filled when they are first used, or straight into the rows of a batch.

    Args:
        packing: the arguments of the packing.
        form: the form of the documents.
        plan: the plan; piece i is of document i.
        documents: the documents of each feature.
        elements: the documents, for their meta leaves.
    """

    def __init__(
        self,
        packing: Packing,
        form: Form,
        plan: PackingPlan,
        documents: Sequence[Documents],
        elements: Sequence[Element],
    ) -> None:
        self._packing = packing
        self._form = form
        self._plan = plan
        self._documents = documents
        self._elements = elements

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: SupportsIndex | slice) -> Element:
        return self._rows[index]

    def __iter__(self) -> Iterator[Element]:
        return iter(self._rows)

    @functools.cached_property
    def _rows(self) -> list[Element]:
        made: list[Any] = []
        rows = max_rows(self._packing, self._form)
        for first, stop in row_blocks(len(self), rows):
            columns = empty_columns(self._packing, self._form, stop - first)
            self._fill(columns, first)
            made += rows_of(columns | meta_columns(self._packing, self._plan.bounds[first : stop + 1], self._elements))
        return made

    @property
    def columns(self) -> Columns | None:
        """Arrays without rows, as those that the sequences can be filled into; None if they have other leaves, too."""
        return None if self._packing.meta else empty_columns(self._packing, self._form, 0)

    def fill(self, columns: Columns) -> None:
        """Write all sequences into the rows of columns."""
        self._fill(columns, 0)

    def _fill(self, columns: Columns, first: int) -> None:
        fill_columns(self._packing, self._form, (self._plan, first), self._documents, columns)


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


def documents_of(form: Form, elements: Sequence[Element]) -> list[Documents]:
    """Return the documents of each feature, with their memory.

    Raises:
        GraphError: one of the elements has another form.
    """
    columns: Sequence[list[Any] | JoinedDocuments] = _joined_columns(form, elements) or _columns(form, elements)
    return [_opened(*each) for each in zip(form.features, columns, form.dtypes, strict=True)]


def lengths_of(packing: Packing, form: Form, documents: Sequence[Documents]) -> NDArray[np.int64]:
    """Return the lengths of documents: int64 (documents,), or (documents, features) if features have their own.

    Raises:
        GraphError: one of them can't be packed.
    """
    lengths = [each.lengths for each in documents]
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


def _joined_columns(form: Form, documents: Sequence[Element]) -> list[JoinedDocuments] | None:
    """Return the documents of each feature, if they are joined and have the form."""
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


def _columns(form: Form, documents: Sequence[Element]) -> list[list[Any]]:
    """Return the values of each feature.

    Raises:
        GraphError: a document has other leaves.
    """
    if form.leaves == 0:
        return [documents if isinstance(documents, list) else list(documents)]
    try:
        are_dicts = all(issubclass(kind, dict) for kind in set(map(type, documents)))
        if are_dicts and set(map(len, documents)) <= {form.leaves}:
            return [[document[name] for document in documents] for name in form.features]
    except (KeyError, TypeError):
        pass
    odd = next(d for d in documents if not _is_dict(d) or len(d) != form.leaves or not set(form.features) <= set(d))
    raise GraphError(
        f"all documents must have the same leaves; the first has {form.leaves} with {list(form.features)} among them, "
        f"and another is {_described(odd)}. Make them alike in .map."
    )


def _opened(name: str, column: list[Any] | JoinedDocuments, dtype: np.dtype[Any]) -> Documents:
    """Return the documents of a feature.

    Raises:
        GraphError: one of them is no array of one axis and the dtype.
    """
    try:
        return open_documents(column, dtype)
    except UsageError as error:
        for value in () if isinstance(column, JoinedDocuments) else column:
            if _array(value, f"{name!r} of a document").dtype != dtype:
                raise GraphError(
                    f"all documents must have one dtype; {name!r} is {dtype} in the first and {value.dtype} in "
                    "another. Convert them in .map."
                ) from None
        raise GraphError(str(error)) from None


def fill_columns(
    packing: Packing, form: Form, planned: tuple[PackingPlan, int], documents: Sequence[Documents], columns: Columns
) -> None:
    """Write sequences into columns of `empty_columns`, or rows of them.

    Args:
        packing: the arguments of the packing.
        form: the form of the documents.
        planned: the plan, and the sequence of the first row.
        documents: those of the plan, of each feature.
        columns: arrays with a row for each sequence.
    """
    plan, first = planned
    extras = extra_names(packing, form.features)
    for number, (name, each) in enumerate(zip(form.features, documents, strict=True)):
        ids, positions = extras[number] if number < len(extras) else ("", "")
        own = plan if packing.is_shared else plan.feature(number)
        out = Rows(columns[name], columns.get(ids), columns.get(positions))
        fill_rows(own, each, out, first=first, padding=packing.padding(name))


def meta_columns(packing: Packing, bounds: NDArray[np.int64], elements: Sequence[Element]) -> dict[str, list[Any]]:
    """Return the meta leaves of sequences, lists of the values of their documents.

    Args:
        packing: the arguments of the packing.
        bounds: the first piece of each sequence, and the end of the last one's.
        elements: the document of each piece.
    """
    spans = [*itertools.pairwise(bounds.tolist())] if packing.meta else []
    return {name: [[element[name] for element in elements[a:b]] for a, b in spans] for name in packing.meta}


def empty_columns(packing: Packing, form: Form, rows: int) -> Columns:
    """Return memory for sequences: new arrays, whose contents are undefined."""
    columns: Columns = {}
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
    ids, positions = (np.ndarray(shape, np.int32, memory, start) for start in (0, size))
    return np.ndarray(shape, dtype, memory, 2 * size), ids, positions


def max_rows(packing: Packing, form: Form) -> int:
    """Return the number of sequences that may share memory: few, since a sequence that is kept keeps all of it."""
    return min(max(_BLOCK_BYTES // max(row_bytes(packing, form), 1), 1), _MAX_ROWS)


def row_bytes(packing: Packing, form: Form) -> int:
    """Return about how many bytes a sequence has."""
    rooms = dict(packing.features)
    widths = (rooms.get(name, rooms.get("", 0)) for name in form.features)
    return sum(width * (dtype.itemsize + 8) for width, dtype in zip(widths, form.dtypes, strict=True))


def row_blocks(count: int, rows: int) -> list[tuple[int, int]]:
    """Return the spans of `count` sequences that share memory, of `rows` each."""
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]


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
    if is_masked(value):
        raise GraphError(
            f"pack() takes no masked arrays; {what} is one. Fill it in .map, as in tokens.filled(0), or name other "
            "leaves in meta=."
        )
    if not is_array(value) or value.ndim != 1:
        known = "Convert it in .map, as in tokens.numpy()" if is_tensor(value) else "Convert it in .map"
        remedy = _CONVERSIONS.get(type(value), known)
        raise GraphError(
            f"pack() takes arrays with one axis; {what} is {_described(value)}. {remedy}, or name other leaves in "
            "meta=."
        )
    return value


def _described(value: object) -> str:
    if is_array(value):
        return f"an array of shape {value.shape}"
    return f"a dict of {list(value)}" if _is_dict(value) else f"a {type(value).__qualname__}"

"""Groups of elements that are planned from known lengths: packed sequences of documents, or batches of similar sizes.

A `Grouping` maps every element of a planned dataset to the parent's elements in it, so that any group can be computed
alone. Its plan is a value, a `PackingPlan`: the tokens of documents that make up each sequence.

A *document* is an array of tokens with one axis. A *sequence* has room for `capacity` tokens and consists of *pieces*,
end to end from its start. Each piece is a run of tokens of one document.

    document 0  aaaaa     capacity 4, concatenated         sequence 0  aaaa
    document 1  bb        and cut:                         sequence 1  abbc
    document 2  c                                          pieces      (0, 0, 4), (0, 4, 1), (1, 0, 2), (2, 0, 1)

All functions here depend only on lengths, not on tokens.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError

NOTE_ON_SUBSTITUTES: Final = (
    "If it replaces an element that failed (on_error=Substitute()), its length must be the same; the log and "
    "loader.replaced() have the error of that element."
)


@runtime_checkable
class Grouping(Protocol):
    """The parent's elements in each group, and their merge. Objects are frozen, comparable and picklable."""

    def __len__(self) -> int:
        """Return the number of groups."""
        ...

    def members(self, groups: NDArray[np.int64], /) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of members of each group, and the positions of all members in the parent, in order.

        Args:
            groups: int64 of shape (n,), numbers of groups.

        Returns:
            The counts, int64 of shape (n,), each at least 1; and the positions, int64 of shape (sum of counts,).
        """
        ...

    def merge(self, groups: NDArray[np.int64], elements: Sequence[Any], /) -> Sequence[Any]:
        """Return the merged element of each group: a list, or elements that are made when they are first used.

        Args:
            groups: as in `members`.
            elements: the parent's elements at the positions from `members`.
        """
        ...

    def fingerprint(self) -> str:
        """Return a short text that identifies this grouping, the same in every process."""
        ...


Integers: TypeAlias = NDArray[np.integer] | Sequence[int]
Long: TypeAlias = Literal["split", "drop"]


class Pieces(NamedTuple):
    """Runs of tokens of documents: [offset, offset + length) of each.

    Attributes:
        document: int64 (pieces,), the document's number.
        offset: int64 (pieces,), the index of the piece's first token in the document.
        length: int64 (pieces,), in tokens.
    """

    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


class PlacedPieces(NamedTuple):
    """Pieces and their sequences, all int64 (pieces,).

    Attributes:
        document: the document's number.
        offset: the index of the piece's first token in the document.
        length: in tokens, at least 1.
        sequence: the sequence's number, never decreasing.
        place: the start of the piece in the sequence.
    """

    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    sequence: NDArray[np.int64]
    place: NDArray[np.int64]


@frozen
class PackingPlan:
    """The pieces of sequences: sequence i has the pieces bounds[i] to bounds[i + 1], end to end.

    Two plans are equal if their arrays are. `len()` is the number of sequences. The arrays are read-only; writable
    arguments are copied.

    Attributes:
        document: int64 (pieces,), the document of a piece.
        offset: int64 (pieces,), the index of the piece's first token in the document.
        length: int64 (pieces,), in tokens; (pieces, features) if documents have several lengths.
        bounds: int64 (sequences + 1,), from 0 to the number of pieces, never decreasing.

    Raises:
        UsageError: the arrays have no integer dtype, or their shapes differ.

    Example:
        >>> plan = PackingPlan(np.array([0, 2, 1]), np.array([0, 0, 0]), np.array([3, 1, 4]), np.array([0, 2, 3]))
        >>> len(plan), plan.take([1]).document.tolist()
        (2, [1])
    """

    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    bounds: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("document", "offset", "length", "bounds"):
            array = as_int64(name, getattr(self, name))
            if array.flags.writeable:
                array = read_only(array.copy())
            object.__setattr__(self, name, array)
        count = len(self.document) if self.document.ndim == 1 else -1
        if self.offset.shape != (count,) or self.length.shape[:1] != (count,) or self.length.ndim > 2:
            raise UsageError(
                "document, offset and length must have one value for each piece; got shapes "
                f"{self.document.shape}, {self.offset.shape} and {self.length.shape}. Make them equally long."
            )
        if self.bounds.ndim != 1 or not self.bounds.size or self.bounds[0] != 0 or self.bounds[-1] != count:
            raise UsageError(
                f"bounds must go from 0 to the number of pieces, {count}; got shape {self.bounds.shape}, from "
                f"{self.bounds[:1].tolist()} to {self.bounds[-1:].tolist()}. Begin with 0 and end with the number."
            )
        if (self.bounds[1:] < self.bounds[:-1]).any():
            raise UsageError("bounds must never decrease. Put the pieces in the order of their sequences.")

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.bounds) - 1

    def take(self, sequences: Integers) -> "PackingPlan":
        """Return the plan of some of the sequences, in the given order; documents keep their numbers.

        Args:
            sequences: integers in [0, len(self)); repetitions are allowed.

        Raises:
            IndexError: one is out of range.

        Example:
            >>> plan = plan_of_sequences(Pieces(*np.array([[0, 1, 2], [0, 0, 0], [3, 3, 1]])), np.array([0, 1, 0]), 2)
            >>> plan.take([1, 0]).document.tolist(), plan.take([1, 0]).bounds.tolist()
            ([1, 0, 2], [0, 1, 3])
        """
        bounds, pieces = self._pieces(sequences)
        return _plan(self.document[pieces], self.offset[pieces], self.length[pieces], bounds)

    def members(self, sequences: Integers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of pieces of each of some sequences, and the document of each piece, as in `take`.

        Raises:
            IndexError: a sequence is out of range.
        """
        bounds, pieces = self._pieces(sequences)
        return bounds[1:] - bounds[:-1], self.document[pieces]

    def _pieces(self, sequences: Integers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bounds of the pieces of some sequences, and the numbers of these pieces.

        Raises:
            IndexError: a sequence is out of range.
        """
        chosen = as_int64("sequences", sequences)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"sequences must be in [0, {len(self)}); got {chosen.min()} to {chosen.max()}")
        begins = self.bounds[chosen]
        counts = self.bounds[chosen + 1] - begins
        bounds = np.zeros(len(chosen) + 1, np.int64)
        counts.cumsum(out=bounds[1:])
        return bounds, np.repeat(begins - bounds[:-1], counts) + np.arange(int(bounds[-1]))

    def by_piece(self) -> "PackingPlan":
        """Return the plan in which piece i is of document i.

        Example:
            >>> plan = PackingPlan(np.array([7, 5, 7]), np.array([0, 0, 2]), np.array([2, 1, 1]), np.array([0, 1, 3]))
            >>> plan.by_piece().document.tolist(), plan.by_piece().offset.tolist()
            ([0, 1, 2], [0, 0, 2])
        """
        return _plan(np.arange(len(self.offset)), self.offset, self.length, self.bounds)

    def renumbered(self) -> tuple[NDArray[np.int64], "PackingPlan"]:
        """Return the documents that have pieces, ascending, and the plan that numbers these documents from 0.

        Example:
            >>> plan = PackingPlan(np.array([7, 5, 7]), np.array([0, 0, 2]), np.array([2, 1, 1]), np.array([0, 3]))
            >>> documents, local = plan.renumbered()
            >>> documents.tolist(), local.document.tolist()
            ([5, 7], [1, 0, 1])
        """
        documents, numbers = np.unique(self.document, return_inverse=True)
        return documents, _plan(numbers.reshape(-1).astype(np.int64), self.offset, self.length, self.bounds)

    def feature(self, number: int) -> "PackingPlan":
        """Return the plan of one feature. It has as many pieces as those of other features, so some may be empty.

        Raises:
            UsageError: documents have one length.
        """
        if self.length.ndim != 2:
            raise UsageError("a feature can be taken only if documents have several lengths. Use the plan itself.")
        return _plan(self.document, self.offset, np.ascontiguousarray(self.length[:, number]), self.bounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackingPlan):
            return NotImplemented
        return all(np.array_equal(mine, theirs) for mine, theirs in zip(self._arrays(), other._arrays(), strict=True))

    def __hash__(self) -> int:
        digest = hashlib.blake2b(digest_size=8)
        for array in self._arrays():
            digest.update(array.data)
        return int.from_bytes(digest.digest(), "little")

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.int64], ...]]:
        # Through the constructor, since an unpickled array is writable.
        return type(self), self._arrays()

    def _arrays(self) -> tuple[NDArray[np.int64], ...]:
        return self.document, self.offset, self.length, self.bounds


def split_documents(lengths: Integers, capacity: int, *, long: Long = "split") -> Pieces:
    """Return the pieces of documents, none longer than `capacity`, in the documents' order.

    A document of at most `capacity` tokens is one piece. An empty document has no piece. The lengths of pieces may be
    the given array.

    Args:
        lengths: the lengths of the documents, in tokens, none negative.
        capacity: the capacity of a sequence, in tokens, at least 1.
        long: the handling of documents over `capacity`: "split" cuts them every `capacity` tokens, "drop" leaves them
            out.

    Raises:
        UsageError: an argument is invalid.

    Example:
        >>> [array.tolist() for array in split_documents([3, 0, 10], 4)]
        [[0, 2, 2, 2], [0, 0, 4, 8], [3, 4, 4, 2]]
        >>> split_documents([3, 0, 10], 4, long="drop").length.tolist()
        [3]
    """
    sizes = checked_lengths(lengths)
    check_capacity(capacity)
    if long not in {"split", "drop"}:
        raise UsageError(f"long must be 'split' or 'drop'; got long={long!r}. Choose one of them.")
    if sizes.size and sizes.min() > 0 and sizes.max() <= capacity:  # as most often: takes a fifth of the time
        return Pieces(np.arange(len(sizes)), np.zeros_like(sizes), sizes)
    counts = np.where(sizes <= capacity, sizes > 0, -(-sizes // capacity) if long == "split" else 0).astype(np.int64)
    document, ordinal = _repeat(counts)
    offset = ordinal * capacity
    return Pieces(document, offset, np.minimum(sizes[document] - offset, capacity))


def concat_then_split(lengths: Integers, capacity: int, *, room: int | None = None) -> PlacedPieces:
    """Return the pieces of documents that are concatenated and cut every `capacity` tokens.

    Sequences are numbered from 0; the first may already have tokens. Every sequence but the last is full.

    Args:
        lengths: the lengths of the documents, in tokens, none negative. Empty documents have no piece.
        capacity: the capacity of a sequence, in tokens, at least 1.
        room: the free tokens of sequence 0, from 1 to `capacity`. Default: `capacity`.

    Raises:
        UsageError: an argument is invalid.

    Example:
        >>> pieces = concat_then_split([5, 2], 4, room=3)
        >>> pieces.length.tolist(), pieces.sequence.tolist(), pieces.place.tolist()
        ([3, 2, 2], [0, 1, 1], [1, 0, 2])
    """
    sizes = checked_lengths(lengths)
    check_capacity(capacity)
    left = capacity if room is None else room
    if not 1 <= left <= capacity:
        raise UsageError(f"room must be in [1, {capacity}], the capacity; got room={room!r}. Begin a new sequence.")
    ends = np.cumsum(sizes) + (capacity - left)
    begins = ends - sizes
    counts = np.where(sizes > 0, (ends - 1) // capacity - begins // capacity + 1, 0)
    document, ordinal = _repeat(counts)
    sequence = begins[document] // capacity + ordinal
    begin = np.maximum(begins[document], sequence * capacity)
    end = np.minimum(ends[document], (sequence + 1) * capacity)
    return PlacedPieces(document, begin - begins[document], end - begin, sequence, begin - sequence * capacity)


def plan_of_sequences(pieces: Pieces, sequence: NDArray[np.int64], count: int) -> PackingPlan:
    """Return the plan with each piece in its given sequence; within a sequence the pieces keep their order.

    Args:
        pieces: in any order.
        sequence: int64 (pieces,), each piece's sequence, in [0, count).
        count: the number of sequences.

    Returns:
        The plan; it keeps the pieces' lengths, of one or several features.

    Example:
        >>> plan_of_sequences(Pieces(*np.array([[0, 1], [0, 0], [3, 4]])), np.array([1, 0]), 2).document.tolist()
        [1, 0]
    """
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(sequence, minlength=count), out=bounds[1:])
    if (sequence[1:] >= sequence[:-1]).all():
        return PackingPlan(pieces.document, pieces.offset, pieces.length, read_only(bounds))
    order = np.argsort(sequence, kind="stable")
    return _plan(pieces.document[order], pieces.offset[order], pieces.length[order], bounds)


def as_int64(name: str, values: Integers) -> NDArray[np.int64]:
    """Return `values` as a C-contiguous int64 array; the same array if it is one already.

    Raises:
        UsageError: they are not integers.
    """
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise UsageError(
            f"{name} must be integers; got dtype {array.dtype}. Convert with numpy.asarray(…, numpy.int64)."
        )
    return np.ascontiguousarray(array, np.int64)


def checked_lengths(lengths: Integers) -> NDArray[np.int64]:
    """Return lengths as int64 (documents,).

    Raises:
        UsageError: they aren't integers of one axis, or one is negative.
    """
    sizes = as_int64("lengths", lengths)
    if sizes.ndim != 1:
        raise UsageError(f"lengths must have one axis here; got shape {sizes.shape}. Pass one length per document.")
    if sizes.size and sizes.min() < 0:
        raise UsageError(
            f"lengths must not be negative; got {sizes.min()} for document {sizes.argmin()}. Pass its number of tokens."
        )
    return sizes


def check_capacity(capacity: int) -> None:
    """Check the capacity of a sequence.

    Raises:
        UsageError: it is less than 1.
    """
    if capacity < 1:
        raise UsageError(
            f"capacity must be at least 1; got capacity={capacity!r}. Pass the number of tokens of a sequence."
        )


def read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the array, made read-only in place."""
    array.flags.writeable = False
    return array


def _plan(*arrays: NDArray[np.int64]) -> PackingPlan:
    """Return a plan over arrays that are new and known to be valid: it neither copies nor checks them."""
    plan = object.__new__(PackingPlan)
    for name, array in zip(("document", "offset", "length", "bounds"), arrays, strict=True):
        object.__setattr__(plan, name, read_only(array))
    return plan


def _repeat(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (index, ordinal): each index of `counts` as often as its count says, and the number of the repetition."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)

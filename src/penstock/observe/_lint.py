"""Findings about a dataset: records that fail, and leaves that a batch can't hold or a model can't learn from.

A `Summary` is of some elements. Those of neighbouring elements are added to each other, so that any worker can
summarize any elements, and the sum of all is small: of each leaf it has the dtypes and shapes that occur, each with the
position of the first element, how many elements have values that aren't finite, and a digest as long as all elements
have the same value. `findings` says what is wrong with the sum.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._graph import Element, value_text
from penstock._tree import Structure, align_leaves, describe_difference, flatten, leaf_paths, subject
from penstock.batching import LeafError, as_value

Check: TypeAlias = Literal[
    "empty", "failed", "structure", "dtype", "ragged", "nan", "constant", "batch", "ranks", "memory", "shared"
]
Merging: TypeAlias = Literal["stack", "pad", "own"]
"""The way in which rows become a batch: leaves are stacked, or padded first, or a function of the user's does it."""

_Key = TypeVar("_Key")

MOST_FAILURES: Final = 10_000  # that are listed; all are counted
_LEAST_ROWS: Final = 8  # from which on a constant leaf is no accident
_MOST_SHAPES: Final = 8  # of a leaf that are kept
_DIGEST_BYTES: Final = 16


@frozen
class Finding:
    """One thing that is wrong with a dataset.

    Attributes:
        check: the name of the check that found it.
        text: the finding in words.
        count: the number of records that it is about; 0 if it is about the dataset as a whole.
        leaf: the path of the leaf; empty if it is about none.
        records: the names of records, each with its error if there is one.
    """

    check: Check
    text: str
    count: int = 0
    leaf: str = ""
    records: tuple[str, ...] = ()


class Failure(NamedTuple):
    """An element that could not be computed."""

    position: int
    error: str
    record: str = ""
    """The name of its record, where the position doesn't show it."""


class LeafSummary:
    """The values of one leaf in some elements.

    Attributes:
        rows: the number of elements that have the leaf.
        first: the position of the first one.
        kinds: the dtypes, or other types, each with the position of its first element.
        refused: the text and the first position of a value that no batch can hold; None if there is none.
        shapes: some of the shapes, each with the position of its first element.
        axes: the numbers of axes that occur.
        nan: the number of elements with a NaN or NaT.
        infinite: the number of elements with an infinity and no NaN.
        not_finite: the position of the first of both; -1 for none.
        digest: of the value that all elements have; None if they differ.
        text: that value, if it is short.
        size: the bytes of all values.
    """

    def __init__(self, first: int) -> None:
        self.rows: int = 0
        self.first: int = first
        self.kinds: dict[str, int] = {}
        self.refused: tuple[str, int] | None = None
        self.shapes: dict[tuple[int, ...], int] = {}
        self.axes: set[int] = set()
        self.nan: int = 0
        self.infinite: int = 0
        self.not_finite: int = -1
        self.digest: bytes | None = None
        self.text: str = ""
        self.size: int = 0

    def add(self, position: int, leaf: object) -> None:
        """Add the value of one element."""
        is_first = self.rows == 0
        self.rows += 1
        try:
            value = as_value(leaf)
        except LeafError as error:
            self.refused = self.refused or (str(error), position)
            self.digest = None
            return
        if value is None or isinstance(value, str | bytes):
            self.kinds.setdefault("None" if value is None else type(value).__name__, position)
            content = b"" if value is None else value if isinstance(value, bytes) else value.encode("utf-8", "replace")
            self.size += len(content)
        else:
            self._add_array(position, value)
            content = value.tobytes() if is_first or self.digest is not None else b""
        self._compare(content, value, is_first=is_first)

    def _add_array(self, position: int, array: NDArray[Any]) -> None:
        self.size += array.nbytes
        self.kinds.setdefault(_dtype_name(array.dtype), position)
        self.axes.add(array.ndim)
        if array.shape not in self.shapes and len(self.shapes) < _MOST_SHAPES:
            self.shapes[array.shape] = position
        has_nan, is_infinite = _not_finite_in(array)
        self.nan += has_nan
        self.infinite += is_infinite and not has_nan
        if (has_nan or is_infinite) and self.not_finite < 0:
            self.not_finite = position

    def _compare(self, content: bytes, value: object, *, is_first: bool) -> None:
        """Forget the value that all elements have, if this one has another."""
        if not is_first and self.digest is None:
            return
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        if is_first:
            self.digest, self.text = digest, "None" if value is None else value_text(value)
        elif digest != self.digest:
            self.digest = None

    def merge(self, later: "LeafSummary") -> None:
        """Add the values of later elements."""
        self.rows += later.rows
        self.size += later.size
        self.refused = self.refused or later.refused
        for kind, position in later.kinds.items():
            self.kinds.setdefault(kind, position)
        self.axes |= later.axes
        for shape, position in later.shapes.items():
            if len(self.shapes) < _MOST_SHAPES:
                self.shapes.setdefault(shape, position)
        self.nan += later.nan
        self.infinite += later.infinite
        self.not_finite = later.not_finite if self.not_finite < 0 else self.not_finite
        if later.digest != self.digest:
            self.digest = None


def _not_finite_in(array: NDArray[Any]) -> tuple[bool, bool]:
    """Return whether an array has a NaN or NaT, and whether it has an infinity; those of all fields, if it has any."""
    dtype = array.dtype
    if dtype.names is not None:
        each = [_not_finite_in(array[name]) for name in dtype.names]
        return any(has_nan for has_nan, _ in each), any(is_infinite for _, is_infinite in each)
    if dtype.kind not in "fcmMV" or dtype.type is np.void:
        return False, False
    try:
        if np.isfinite(array).all():
            return False, False
        has_nan = np.isnat(array) if dtype.kind in "mM" else np.isnan(array)
    except TypeError:  # of ml_dtypes, which also adds integers to NumPy
        return False, False
    return bool(has_nan.any()), dtype.kind not in "mM" and bool(np.isinf(array).any())


class Summary:
    """The summary of some elements.

    Attributes:
        rows: the number of elements, also of those that failed.
        failed: the number of those that failed.
        failures: the first of them.
        leaves: the leaves by their paths.
        structure: that of the first element, and its position; None if there is none yet.
        other: another structure, and the position of its first element; None if all are alike.
    """

    def __init__(self) -> None:
        self.rows: int = 0
        self.failed: int = 0
        self.failures: list[Failure] = []
        self.leaves: dict[str, LeafSummary] = {}
        self.structure: tuple[Structure, int] | None = None
        self.other: tuple[Structure, int] | None = None

    def add(self, position: int, element: Element) -> None:
        """Add an element.

        Raises:
            Exception: of an object's own code, as it is converted to an array.
        """
        leaves, structure = flatten(element)
        for path, leaf in zip(_paths_of(structure), leaves, strict=True):
            known = self.leaves.get(path)
            if known is None:
                known = self.leaves[path] = LeafSummary(position)
            known.add(position, leaf)
        self.rows += 1
        self._note_structure(structure, position)

    def fail(self, failure: Failure, *, rows: int = 1) -> None:
        """Add elements that failed."""
        self.rows += rows
        self.failed += rows
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(failure)

    def merge(self, later: "Summary") -> None:
        """Add the summary of later elements."""
        self.rows += later.rows
        self.failed += later.failed
        self.failures += later.failures[: MOST_FAILURES - len(self.failures)]
        for path, leaf in later.leaves.items():
            if path in self.leaves:
                self.leaves[path].merge(leaf)
            else:
                self.leaves[path] = leaf
        for noted in (later.structure, later.other):
            if noted is not None:
                self._note_structure(*noted)

    def _note_structure(self, structure: Structure, position: int) -> None:
        if self.structure is None:
            self.structure = structure, position
        elif self.other is None and not _is_alike(self.structure[0], structure):
            self.other = structure, position

    @property
    def row_bytes(self) -> float:
        """The mean size of an element, in bytes."""
        good = self.rows - self.failed
        return sum(leaf.size for leaf in self.leaves.values()) / good if good else 0.0


@functools.lru_cache(maxsize=64)
def _paths_of(structure: Structure) -> tuple[str, ...]:
    return leaf_paths(structure)


@functools.lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def _is_alike(one: Structure, other: Structure) -> bool:
    """Return whether two structures differ in nothing but the order of keys."""
    return one == other or align_leaves(one, [None] * other.num_leaves, other) is not None


def findings(summary: Summary, merging: Merging, name_of: Callable[[int], str]) -> Iterator[Finding]:
    """Yield what is wrong with some elements.

    Args:
        summary: of the elements.
        merging: how they become batches.
        name_of: returns the name of the record of an element, by its position.
    """
    if summary.failed:
        records = (f"{each.record or name_of(each.position)}: {each.error}" for each in summary.failures)
        text = f"{_records(summary.failed)} of {summary.rows:,} can't be computed"
        yield Finding("failed", text, summary.failed, records=tuple(records))
    if summary.structure is not None and summary.other is not None and merging != "own":
        names = name_of(summary.structure[1]), name_of(summary.other[1])
        difference = describe_difference(summary.structure[0], summary.other[0], names)
        yield Finding("structure", f"elements differ in structure, so a batch can't hold them: {difference}")
    for path, leaf in summary.leaves.items():
        found = (_dtypes(leaf, merging, name_of), _shapes(leaf, merging, name_of), _not_finite(leaf, name_of))
        for check, text, count in (*found, _constant(leaf)):
            if text:
                yield Finding(check, f"{subject(path)} {text}", count, path)


_Found: TypeAlias = tuple[Check, str, int]
"""A check of a leaf, the finding in words, which are empty if there is none, and the number of records."""


def _dtypes(leaf: LeafSummary, merging: Merging, name_of: Callable[[int], str]) -> _Found:
    if merging == "own":
        return "dtype", "", 0
    if leaf.refused is not None:
        kind, position = leaf.refused
        return "dtype", f"is {kind} in {name_of(position)}, which a batch can't hold. Convert it in a map", 0
    if len(leaf.kinds) < 2:
        return "dtype", "", 0
    listed = ", ".join(f"{kind} in {name_of(position)}" for kind, position in _by_position(leaf.kinds))
    return "dtype", f"has several dtypes, and a batch promotes none: {listed}. Convert it to one in a map", 0


def _shapes(leaf: LeafSummary, merging: Merging, name_of: Callable[[int], str]) -> _Found:
    is_ragged = len(leaf.shapes) > 1 if merging == "stack" else len(leaf.axes) > 1
    if not is_ragged or merging == "own":
        return "ragged", "", 0
    listed = " and ".join(f"{shape} in {name_of(position)}" for shape, position in _by_position(leaf.shapes)[:2])
    remedy = "" if len(leaf.axes) > 1 else ", or pad it with padded_batch(n)"
    return "ragged", f"has several shapes, and a batch has one: {listed}. Make it of one shape in a map{remedy}", 0


def _not_finite(leaf: LeafSummary, name_of: Callable[[int], str]) -> _Found:
    are_times = all(kind.startswith(("datetime64", "timedelta64")) for kind in leaf.kinds)
    counts = ((leaf.nan, "has NaT" if are_times else "has NaN"), (leaf.infinite, "is infinite"))
    listed = " and ".join(f"{text} in {_records(count)}" for count, text in counts if count)
    text = f"{listed}; the first is {name_of(leaf.not_finite)}" if listed else ""
    return "nan", text, leaf.nan + leaf.infinite


def _constant(leaf: LeafSummary) -> _Found:
    if leaf.digest is None or leaf.rows < _LEAST_ROWS or len(leaf.kinds) > 1 or len(leaf.shapes) > 1:
        return "constant", "", 0
    return "constant", f"is {leaf.text or 'the same'} in all {leaf.rows:,} records", leaf.rows


def _by_position(found: Mapping[_Key, int]) -> list[tuple[_Key, int]]:
    """Return what occurs and the positions, in the order of these."""
    return sorted(found.items(), key=lambda each: each[1])


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"

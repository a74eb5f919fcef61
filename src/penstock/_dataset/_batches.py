"""The verbs of batches: consecutive elements merged into one, and taken apart again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

import numpy as np

from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._nodes import Batch, Merge, Remainder, Unbatch
from penstock._graph._verify import need_count, need_function
from penstock.batching import Pad, Stack
from penstock.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock._dataset._dataset import Dataset

U = TypeVar("U")
Scalar = TypeVar("Scalar", bound=np.generic)


class BatchVerbs(Verbs[T_co]):
    """Verbs between elements and batches."""

    __slots__ = ()

    # First what matches where the elements' type isn't known: nothing else is a Dataset[Never].
    @overload
    def batch(
        self: "Verbs[Never]", size: int, *, remainder: Remainder = "keep", mask: str | None = None
    ) -> "Dataset[Any]": ...
    @overload
    def batch(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload] - a bool is an int too
        self: "Verbs[bool]", size: int, *, remainder: Remainder = "keep", mask: None = None
    ) -> "Dataset[NDArray[np.bool_]]": ...
    @overload
    def batch(
        self: "Verbs[int]", size: int, *, remainder: Remainder = "keep", mask: None = None
    ) -> "Dataset[NDArray[np.int64]]": ...
    @overload
    def batch(
        self: "Verbs[float]", size: int, *, remainder: Remainder = "keep", mask: None = None
    ) -> "Dataset[NDArray[np.float64]]": ...
    @overload
    def batch(
        self: "Verbs[NDArray[Scalar]]", size: int, *, remainder: Remainder = "keep", mask: None = None
    ) -> "Dataset[NDArray[Scalar]]": ...
    @overload
    def batch(
        self: "Verbs[str]", size: int, *, remainder: Remainder = "keep", mask: None = None
    ) -> "Dataset[list[str]]": ...
    @overload
    def batch(
        self: "Verbs[bytes]", size: int, *, remainder: Remainder = "keep", mask: None = None
    ) -> "Dataset[list[bytes]]": ...
    @overload
    def batch(
        self: "Verbs[dict[str, Any]]", size: int, *, remainder: Remainder = "keep", mask: str | None = None
    ) -> "Dataset[dict[str, Any]]": ...
    @overload
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        mask: None = None,
        merge: Callable[[list[T_co]], U],
    ) -> "Dataset[U]": ...
    @overload
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        mask: str,
        merge: Callable[[list[T_co]], object],
    ) -> "Dataset[Any]": ...
    @overload
    def batch(
        self, size: int, *, remainder: Remainder = "keep", mask: str | None = None, merge: None = None
    ) -> "Dataset[Any]": ...
    def batch(
        self,
        size: int,
        *,
        remainder: Remainder = "keep",
        mask: str | None = None,
        merge: Merge | None = None,
    ) -> "Dataset[Any]":
        """Return batches of `size` elements, stacked leaf by leaf.

        Arrays and scalars get a leading axis of `size` rows; int, float and bool become int64, float64 and bool;
        str and bytes become a list. A differing dtype or shape is an error, never promoted.

        Args:
            size: rows of the *global* batch, over all ranks; at least 1.
            remainder: what becomes of a last batch that isn't full: "keep" it short, "drop" it, or "pad" it with its
                last element.
            mask: names a bool leaf, in every batch, that is true for rows of data and false for padding.
            merge: a function from a list of elements to a batch, instead of stacking.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        if merge is not None:
            need_function("merge", merge)
        return self._batch(size, merge or Stack(), remainder, mask)

    def padded_batch(
        self,
        size: int,
        *,
        length: int | None = None,
        fill: float = 0,
        mask: str | None = None,
        remainder: Remainder = "keep",
    ) -> "Dataset[Any]":
        """Return batches of elements whose arrays differ in length, padded along their first axis.

        Args:
            size: as in `batch`.
            length: pad to this many; None pads to the longest of each batch.
            fill: the value of padding.
            mask: names a bool leaf of shape (rows, length): true where there is data.
            remainder: as in `batch`.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> batches = ps.range(1, 4).map(lambda number: np.full(number, number)).padded_batch(3)
            >>> batches[0].tolist()
            [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        if length is not None:
            length = need_count("length", length, 1)
        return self._batch(size, Pad(length, fill, mask), remainder, None)

    def unbatch(self) -> "Dataset[Any]":
        """Return the rows of each batch as elements again.

        Example:
            >>> import penstock as ps
            >>> [int(row) for row in ps.range(5).batch(2).map(lambda batch: batch * 10).unbatch()]
            [0, 10, 20, 30, 40]
        """
        return self._new(Unbatch(self._node))

    def rebatch(self, size: int, *, remainder: Remainder = "keep") -> "Dataset[T_co]":
        """Return batches of another size, of the same rows in the same order.

        Args:
            size: as in `batch`.
            remainder: as in `batch`.

        Example:
            >>> import penstock as ps
            >>> [batch.tolist() for batch in ps.range(5).batch(2).rebatch(3)]
            [[0, 1, 2], [3, 4]]
        """
        unbatched = Unbatch(self._node)
        return self._new(Batch(unbatched, need_count("size", size, 1), Stack(), _need_remainder(remainder), None))

    def _batch(self, size: int, merge: Merge, remainder: Remainder, mask: str | None) -> "Dataset[Any]":
        size = need_count("size", size, 1)
        return self._new(Batch(self._node, size, merge, _need_remainder(remainder), mask))


def _need_remainder(remainder: Remainder) -> Remainder:
    if remainder not in ("keep", "drop", "pad"):
        raise UsageError(f'remainder must be "keep", "drop" or "pad"; got remainder={remainder!r}')
    return remainder

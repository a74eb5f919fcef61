"""The balancing sampler: in any short range all classes occur equally often, and each repeats its elements."""

from functools import cached_property
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._seeds import derive, derive_block
from penstock.errors import UsageError
from penstock.sampling._arguments import array_digest, check_position, check_positions, checked_length, checked_seed
from penstock.sampling._permutation import Permutation

Labels: TypeAlias = NDArray[np.integer] | NDArray[np.bool_] | NDArray[np.str_]

# Up to this number of classes, hashes are sorted for the orders of many periods at once; above, each is a permutation.
_MAX_SORTED: Final = 64


class _Classes(NamedTuple):
    """The elements by class: those of class i, in ascending order, are members[starts[i] : starts[i] + counts[i]]."""

    members: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    seeds: list[int]


@frozen(cached=True)
class Balance:
    """An order in which all classes occur equally often: (e, p) to (e, key).

    With C classes, every C positions are a period. Each period has one element of every class, in an order of its own;
    so the shares are exact after every period, and nearly exact elsewhere. Each class repeats its own elements in
    passes, every pass in another order: no element occurs again before all others of its class have occurred. So a
    small class has many passes while a large one has a single pass, or, if `length` is small, a part of one.
    `balanced_length` returns the length with one whole pass of the largest class.

    The algorithm: let k = p // C be the period. Up to 64 classes, its order is that of the hashes derive(derive(seed,
    "order"), e, k, i) of the classes i, numbered by their sorted labels; above, Permutation(C, derive(derive(seed,
    "order"), e, k)). The element of a class with n elements is Permutation(n, derive(derive(seed, "members", label), e,
    k // n)) at k % n: it doesn't depend on other classes.

    Two are equal if their labels, lengths and seeds are. The repr has a digest of the labels. From the first use on it
    takes eight bytes an element besides the labels; a pickle leaves these out.

    Attributes:
        labels: the class of each of the parent's elements: integers, bools or strings of shape (n,), n at least 1.
            They are copied, integers and bools to int64, and the copy is read-only.
        length: the number of positions in an epoch, from 0 to 2**62.
        seed: from 0 to 2**64 - 1.

    Raises:
        UsageError: if one of them is invalid.

    Example:
        >>> labels = np.array(["cat", "cat", "dog", "cat", "cat"])
        >>> balance = Balance(labels, length=balanced_length(labels), seed=7)
        >>> keys = [balance(0, position)[1] for position in range(len(balance))]
        >>> labels[keys].tolist().count("dog"), sorted(keys)
        (4, [0, 1, 2, 2, 2, 2, 3, 4])
    """

    labels: Labels
    length: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _checked_labels(self.labels))
        object.__setattr__(self, "length", checked_length(self.length))
        object.__setattr__(self, "seed", checked_seed(self.seed))

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return self.length

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        check_position(position, self.length)
        members, starts, counts, seeds = self._classes
        period, place = divmod(position, len(counts))
        number = self._number(epoch, period, place)
        number_of_pass, row = divmod(period, int(counts[number]))
        order = Permutation(int(counts[number]), derive(seeds[number], epoch, number_of_pass))
        return epoch, int(members[int(starts[number]) + order(row)])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        check_positions(positions, self.length)
        if not len(positions):
            return epochs, positions
        members, starts, counts, seeds = self._classes
        periods, places = np.divmod(positions, len(counts))
        numbers = self._numbers(epochs, periods, places)
        passes, rows = np.divmod(periods, counts[numbers])
        for group in _groups(epochs, numbers, passes):
            first = group[0]
            number = int(numbers[first])
            order = Permutation(int(counts[number]), derive(seeds[number], int(epochs[first]), int(passes[first])))
            rows[group] = order.block(rows[group])
        return epochs, members[starts[numbers] + rows]

    def _number(self, epoch: int, period: int, place: int) -> int:
        """Return the class at one place of one period."""
        count = len(self._classes.counts)
        seed = derive(self.seed, "order")
        if count > _MAX_SORTED:
            return Permutation(count, derive(seed, epoch, period))(place)
        hashes = derive_block(seed, np.full(count, epoch), np.full(count, period), np.arange(count))
        return int(hashes.argsort()[place])

    def _numbers(
        self, epochs: NDArray[np.int64], periods: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the class at each place of each period."""
        count = len(self._classes.counts)
        seed = derive(self.seed, "order")
        changes = np.flatnonzero((periods[1:] != periods[:-1]) | (epochs[1:] != epochs[:-1])) + 1
        firsts = np.concatenate(([0], changes))
        stops = np.concatenate((changes, [len(periods)]))
        if count <= _MAX_SORTED:
            # A row for each period, a column for each class. The hashes of a row all differ, since `derive` maps the
            # last part of a path one to one.
            columns = (epochs[firsts, np.newaxis], periods[firsts, np.newaxis], np.arange(count)[np.newaxis])
            orders = derive_block(seed, *columns).argsort(axis=1)
            return orders[np.repeat(np.arange(len(firsts)), stops - firsts), places]
        numbers = np.empty_like(places)
        for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
            order = Permutation(count, derive(seed, int(epochs[first]), int(periods[first])))
            numbers[first:stop] = order.block(places[first:stop])
        return numbers

    @cached_property
    def _classes(self) -> _Classes:
        members = self.labels.argsort(kind="stable")
        ordered = self.labels[members]
        starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
        counts = np.diff(starts, append=len(members))
        values: list[int | str] = ordered[starts].tolist()
        return _Classes(members, starts, counts, [derive(self.seed, "members", value) for value in values])

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Balance):
            return NotImplemented
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash((self._digest, self.length, self.seed))

    def __repr__(self) -> str:
        return f"Balance(<{len(self.labels)} labels {self._digest}>, length={self.length}, seed={self.seed})"

    def __reduce__(self) -> tuple[type[Self], tuple[Labels, int, int]]:
        # Through the constructor, since an unpickled array is writable.
        return type(self), (self.labels, self.length, self.seed)


def balanced_length(labels: Labels) -> int:
    """Return the length of an epoch that has each element of the largest class once: its size times the classes.

    Args:
        labels: as in `Balance`.

    Raises:
        UsageError: if the labels are invalid.

    Example:
        >>> balanced_length(np.array([0, 0, 0, 1]))
        6
    """
    _, counts = np.unique(_checked_labels(labels), return_counts=True)
    return len(counts) * int(counts.max())


def _checked_labels(labels: Labels) -> NDArray[np.int64] | NDArray[np.str_]:
    """Return a copy of the labels: int64, or strings as wide as the longest, so that equal labels have equal digests.

    Raises:
        UsageError: if they have another type, or there are none.
    """
    given = np.asarray(labels)
    if given.ndim == 1 and given.dtype.kind in "OT" and all(isinstance(label, str) for label in given.tolist()):
        given = given.astype(np.str_)  # a column of pandas or pyarrow has objects
    if given.ndim != 1 or not given.size or given.dtype.kind not in "biuU":
        raise UsageError(
            "labels must be integers, bools or strings in an array of one axis that is not empty; "
            f"got dtype {given.dtype} and shape {given.shape}. Pass one label for each of the parent's elements."
        )
    checked: NDArray[np.int64] | NDArray[np.str_]
    if given.dtype.kind == "U":
        texts = given.astype(np.str_)
        width = max(int(np.char.str_len(texts).max()), 1)
        checked = np.array(texts, f"=U{width}")
    else:
        checked = np.array(given, np.int64)
    checked.flags.writeable = False
    return checked


def _groups(
    epochs: NDArray[np.int64], numbers: NDArray[np.int64], passes: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the rows with the same epoch, class and pass, one array for each."""
    order = np.lexsort((passes, numbers, epochs))
    changed = np.zeros(len(order) - 1, np.bool_)
    for values in (epochs, numbers, passes):
        ordered = values[order]
        changed |= ordered[1:] != ordered[:-1]
    return np.split(order, np.flatnonzero(changed) + 1)

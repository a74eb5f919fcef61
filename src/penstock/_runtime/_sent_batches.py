"""Batches on their way from a worker process to the consumer: their arrays are written in place, their places are sent.

To pickle an array, and to load it, takes the two processes some microseconds, as long as many functions of a batch. So
the arrays of a batch are written straight into the job's memory, each batch while it is in the processor's caches, and
the consumer makes arrays over these places. Consecutive batches of one form, which is the rule, are a *run*: their
places follow each other, so that one tuple is sent for all of them.

That is for batches that are an array, or a dict, list or tuple of arrays; tensors of torch on the host count as arrays.
Others travel as pickles, in which lists of texts are packed.
"""

import itertools
import operator
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from penstock._graph import Element
from penstock._memory import Lease, Region, aligned, array_over
from penstock._packed_strings import PackedStrings, is_list, packed
from penstock._runtime._room import Room
from penstock._strides import copied_rows
from penstock._tensors import array_of, dtype_name, is_tensor, memory_order, tensors_over
from penstock._tree import IMMUTABLE

_KINDS: Final = "biufc"
_PACKED: Final = IMMUTABLE | {PackedStrings}
_PART_BYTES: Final = 1 << 14  # by which memory is sent: each other size is one more layout for the pipe
_REGISTERED: Final = 2  # `isbuiltin` of the dtypes that other packages add to NumPy
_Arrays: TypeAlias = Sequence[NDArray[Any]]


class _Leaf(NamedTuple):
    """The form of an array, and its place in the memory of its batch."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int
    tensor: str
    """The name of the tensor's dtype in torch; empty for an array."""


class _Form(NamedTuple):
    """The containers and arrays of a batch, without their contents."""

    container: type[object] | None
    """The dict, list or tuple that the arrays are in; None for an array alone."""
    keys: tuple[object, ...]
    leaves: tuple[_Leaf, ...]
    size_bytes: int

    def columns(self, count: int, memory: Region | Lease | NDArray[np.uint8], start_bytes: int) -> list[NDArray[Any]]:
        """Return arrays over memory, with a leading axis of `count` batches, for each array of a batch."""
        buffer = cast("memoryview", memory)
        return [
            np.ndarray((count, *shape), dtype, buffer, start_bytes + offset, (self.size_bytes, *strides))
            for shape, dtype, strides, offset, _ in self.leaves
        ]

    def batches(self, columns: list[list[NDArray[Any]]]) -> list[Element]:
        """Return batches of this form, from the arrays of each leaf."""
        parts: list[list[Any]] = [
            tensors_over(arrays, leaf.tensor) if leaf.tensor else arrays
            for leaf, arrays in zip(self.leaves, columns, strict=True)
        ]
        if self.container is None:
            return parts[0]
        rows = zip(*parts, strict=True)
        if self.container is dict:
            return [dict(zip(self.keys, row, strict=True)) for row in rows]
        return list(map(self.container, rows))


WrittenRun: TypeAlias = tuple[bytes, int, int]
"""The pickled form of a run, the number of its batches, and the start of its memory."""
SentRun: TypeAlias = WrittenRun | list[Element]
"""A run, or batches that are pickled."""
AnyRun = TypeVar("AnyRun")


@lru_cache
def _form_of(pickled: bytes) -> _Form:
    form: _Form = pickle.loads(pickled)
    return form


def received(runs: Iterable[SentRun], memory: Lease, copied_bytes: int) -> Iterator[Element]:
    """Yield the batches that were sent.

    Args:
        runs: what was sent of them.
        memory: that of the job.
        copied_bytes: arrays of at most this size are copied out of it.
    """
    for run in runs:
        yield from run if isinstance(run, list) else written(run, memory, copied_bytes)


def in_memory(runs: Sequence[SentRun], memory: Lease) -> tuple[NDArray[np.uint8], bytes] | None:
    """Return the memory with all batches that were sent, and its pickled runs; None if any batch was pickled."""
    places = [run for run in runs if not isinstance(run, list)]
    if len(places) < len(runs) or not runs:
        return None
    end = max(start + count * _form_of(form).size_bytes for form, count, start in places)
    whole = -(-end // _PART_BYTES) * _PART_BYTES
    return array_over(memory, (min(whole, len(memory)),), np.uint8), pickle.dumps(places)


def from_memory(memory: NDArray[np.uint8], runs: bytes, copied_bytes: int) -> list[Element]:
    """Return the batches of `in_memory`, in the process that has received these two; see `received`."""
    places: list[WrittenRun] = pickle.loads(runs)
    return list(itertools.chain.from_iterable(written(run, memory, copied_bytes) for run in places))


def written(run: WrittenRun, memory: Lease | NDArray[np.uint8], copied_bytes: int) -> list[Element]:
    """Return the batches of a run; see `received`."""
    form = _form_of(run[0])
    columns = form.columns(run[1], memory, run[2])
    return form.batches([_divided(column, copied_bytes) for column in columns])


def _divided(column: NDArray[Any], copied_bytes: int) -> list[NDArray[Any]]:
    if column.ndim == 1:  # of tensors without axes
        return list(map(np.array, column))
    is_copied = column[0].nbytes <= copied_bytes
    return copied_rows(column) if is_copied else list(column)


class _Writer:
    """Writes consecutive batches of one form.

    The first batch has memory of its own; the second one gets memory for all that are left. So batches of different
    forms reserve no more than they need.
    """

    def __init__(self, batch: Element, arrays: _Arrays, room: Room) -> None:
        self._room = room
        self._form = _form(batch, arrays)
        self._type: type[object] = type(batch)
        self._kinds = list(map(_kind, _leaves(batch), arrays))
        self._may_repeat = len(set(self._kinds)) < len(self._kinds)  # leaves of different kinds aren't one object
        _, self._shape, self._dtype, self._strides = self._kinds[0]
        # Not a bound method: it would refer to this object, and the memory would stay mapped until Python's collector.
        self._write = _Writer._write_array if self._type is np.ndarray else _Writer._write_leaves
        self._ended: list[tuple[int, int]] = []  # the runs before the current one: their batches, and their starts
        self._count, self._most, self._start_bytes = 0, 1, room.take(self._form.size_bytes)
        self._columns = self._form.columns(1, room.memory, self._start_bytes)

    def write(self, batch: Element, left: int) -> bool:
        """Write the next of `left` batches; return whether it has the form, which takes less time than to find one."""
        return self._write(self, batch, left)

    def _write_array(self, batch: Element, left: int) -> bool:
        if type(batch) is not np.ndarray or not _are_equal(batch.dtype, self._dtype) or batch.shape != self._shape:
            return False
        if batch.strides != self._strides or not batch.flags.writeable:
            return False
        number = self._count
        if number == self._most:
            self._reserve(left)
            number = self._count
        self._columns[0][number] = batch
        self._count = number + 1
        return True

    def _write_leaves(self, batch: Element, left: int) -> bool:
        if type(batch) is not self._type or not self._has_keys(batch):
            return False
        arrays = self._fitting(_leaves(batch))
        if arrays is None:
            return False
        number = self._count
        if number == self._most:
            self._reserve(left)
            number = self._count
        for column, array in zip(self._columns, arrays, strict=True):
            column[number] = array
        self._count = number + 1
        return True

    def _has_keys(self, batch: Element) -> bool:
        """Return whether a batch of as many leaves has the form's keys, which are nearly always the same objects."""
        keys = self._form.keys
        if self._type is not dict or all(map(operator.is_, cast("dict[object, object]", batch), keys)):
            return True
        return _keys(batch) == keys and _has_names(batch)

    def _fitting(self, leaves: Sequence[Any]) -> _Arrays | None:
        """Return the arrays of leaves that fit the form; None if one doesn't."""
        if len(leaves) != len(self._kinds) or (self._may_repeat and _repeats(leaves)):
            return None
        arrays: list[NDArray[Any]] = []
        for leaf, (kind, shape, dtype, strides) in zip(leaves, self._kinds, strict=True):
            given: Any = leaf
            if type(leaf) is not kind or not _are_equal(given.dtype, dtype):
                return None
            array: NDArray[Any] | None = given if kind is np.ndarray else array_of(given)
            if array is None or array.shape != shape or array.strides != strides or not array.flags.writeable:
                return None
            arrays.append(array)
        return arrays

    def _reserve(self, left: int) -> None:
        """Reserve memory for `left` batches: the run goes on there, or another one begins."""
        start_bytes = self._room.take(left * self._form.size_bytes)
        if start_bytes == self._start_bytes + self._most * self._form.size_bytes:
            self._most += left
        else:  # another worker has reserved memory in between
            self._ended.append((self._count, self._start_bytes))
            self._count, self._most, self._start_bytes = 0, left, start_bytes
        self._columns = self._form.columns(self._most, self._room.memory, self._start_bytes)

    def sent(self) -> list[WrittenRun]:
        """Return what is sent of the batches."""
        form = pickle.dumps(self._form)
        return [(form, *run) for run in (*self._ended, (self._count, self._start_bytes))]


class RunWriter(Generic[AnyRun]):
    """Writes batches in place, and keeps what is sent of all.

    Args:
        room: the memory for them.
        count: the number of batches.
        other: returns what is sent of a batch that can't be written in place.
    """

    def __init__(self, room: Room, count: int, other: Callable[[Element], AnyRun]) -> None:
        self._room = room
        self._left = count
        self._other = other
        self._runs: list[WrittenRun | AnyRun] = []
        self._writer: _Writer | None = None

    def add(self, batch: Element) -> None:
        """Write the next batch."""
        left, writer = self._left, self._writer
        self._left = left - 1
        if writer is not None and writer.write(batch, left):
            return
        self._end_run()
        arrays = _arrays(batch)
        writer = None if arrays is None else _Writer(batch, arrays, self._room)
        if writer is None or not writer.write(batch, left):
            self._runs.append(self._other(_with_packed(batch)))
        else:
            self._writer = writer

    def _end_run(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._runs += writer.sent()

    def sent(self) -> list[WrittenRun | AnyRun]:
        """Return what is sent of the batches, after the last one."""
        self._end_run()
        return self._runs


def send(batches: Iterable[Element], count: int, room: Room) -> list[SentRun]:
    """Write `count` batches into the room, each when it has been made; return what is sent of them."""
    writer: RunWriter[list[Element]] = RunWriter(room, count, lambda batch: [batch])
    made = iter(batches)
    for _ in range(count):
        writer.add(next(made))
    return writer.sent()


def _with_packed(batch: Element) -> Element:
    """Return a batch with its lists of texts or bytes packed, or the batch itself.

    An object that can be changed may be in it twice, which the pickle has to keep: so all else must be arrays or leaves
    that can't be changed.
    """
    whole = packed(batch)
    if whole is not batch:
        return whole
    leaves = _leaves(batch)
    made = list(map(packed, leaves))
    lists = list(map(id, filter(is_list, leaves)))
    if not lists or len(set(lists)) < len(lists) or not all(map(_holds_none, made)):
        return batch
    container, keys = _container(batch), _keys(batch)
    if container is dict:
        return dict(zip(keys, made, strict=True))
    return tuple(made) if container is tuple else made


def _holds_none(leaf: object) -> bool:
    """Return whether a leaf holds no objects that can be changed."""
    return type(leaf) in _PACKED or (type(leaf) is np.ndarray and not leaf.dtype.hasobject)


def _arrays(batch: object) -> _Arrays | None:
    """Return the arrays of a batch, also those of its tensors; None if anything of it would not arrive as it is."""
    leaves = _leaves(batch)
    if not leaves or _repeats(leaves) or not _has_names(batch):
        return None
    arrays: list[NDArray[Any]] = []
    for leaf in leaves:
        array = _array(leaf)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _array(leaf: object) -> NDArray[Any] | None:
    if type(leaf) is np.ndarray:
        return leaf if is_plain(leaf) else None
    return array_of(cast("Any", leaf)) if is_tensor(leaf) else None


def _leaves(batch: object) -> Sequence[Any]:
    """Return the values of a dict, list or tuple, or an array or tensor; nothing for any other object."""
    kind = type(batch)
    if kind is dict:
        return [*cast("dict[object, Any]", batch).values()]
    if kind is list or kind is tuple:
        return cast("Sequence[Any]", batch)
    return [batch] if kind is np.ndarray or is_tensor(batch) else ()


def _has_names(batch: object) -> bool:
    """Return whether all keys of a batch are plain strings; they are if it has none."""
    return set(map(type, _keys(batch))) <= {str}


def _repeats(leaves: Sequence[Any]) -> bool:
    """Return whether two leaves are the same array, which a pickle keeps."""
    return len(set(map(id, leaves))) < len(leaves)


def is_plain(array: NDArray[Any]) -> bool:
    """Return whether nothing but gaps is lost if only the array's shape, dtype, strides and bytes are sent."""
    return _is_plain_dtype(array.dtype) and array.ndim > 0 and array.flags.writeable


def _is_plain_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether nothing of a dtype is lost if only its text is sent; to NumPy, none from a pickle is builtin."""
    if dtype.kind not in _KINDS or not dtype.isnative or dtype.names is not None or dtype.metadata is not None:
        return False
    return dtype.isbuiltin != _REGISTERED  # another package's may have the text of one of NumPy's


def _form(batch: Element, arrays: _Arrays) -> _Form:
    leaves: list[_Leaf] = []
    end = 0
    for leaf, array in zip(_leaves(batch), arrays, strict=True):
        name = "" if leaf is array else dtype_name(leaf)
        leaves.append(_Leaf(array.shape, array.dtype.str, sent_strides(array), end, name))
        end = aligned(end + array.nbytes)
    return _Form(_container(batch), _keys(batch), tuple(leaves), end)


def sent_strides(array: NDArray[Any]) -> tuple[int, ...]:
    """Return the strides that an array has where it arrives: its own if it has no gaps, or else those of C order."""
    if array.flags.forc or memory_order(array):
        return array.strides
    strides = [array.itemsize]
    for length in array.shape[:0:-1]:
        strides.append(strides[-1] * length)
    return tuple(strides[::-1])


def _container(batch: object) -> type[object] | None:
    container = type(batch)
    return container if container in {dict, list, tuple} else None


def _kind(leaf: object, array: NDArray[Any]) -> tuple[type[object], tuple[int, ...], Any, tuple[int, ...]]:
    """Return the type, the shape and the dtype of an array or tensor, and the strides of its array, in bytes."""
    given: Any = leaf
    return type(leaf), given.shape, given.dtype, array.strides


def _are_equal(dtype: object, other: object) -> bool:
    """Return whether a dtype is another one or, since each pickle of one makes another object, equal and plain."""
    return dtype is other or (isinstance(dtype, np.dtype) and dtype == other and _is_plain_dtype(cast("Any", dtype)))


def _keys(batch: object) -> tuple[object, ...]:
    return tuple(cast("dict[object, object]", batch)) if type(batch) is dict else ()

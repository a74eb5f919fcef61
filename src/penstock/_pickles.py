"""An object as one block of memory: a table of sizes, the pickle, and the pickle's buffers.

The buffers are the data that pickle's protocol 5 keeps outside the stream, such as that of arrays inside an object.
Each starts at a multiple of 64 bytes, and is read in place.
"""

import copyreg
import importlib
import io
import pickle
import struct
import sys
import threading
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, lru_cache
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeAlias, TypeGuard, cast
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np

from penstock._caught import Caught
from penstock._memory import aligned
from penstock._module_search import ModuleSearch
from penstock._strides import (
    in_one_piece,
    is_spread,
    new_memory,
    row_of,
    row_over,
    span_of,
    viewed_as,
    whole_items,
    with_strides,
    without_wide_gaps,
    written_into,
)
from penstock._tensors import (
    array_of,
    dtype_name,
    is_strided,
    is_tensor,
    memory_order,
    permuted_tensor_over,
    tensor_of,
    tensor_over,
    tensor_type,
)
from penstock.errors import MessageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE: Final = struct.Struct("<Q")
_Reduced: TypeAlias = str | tuple[Callable[..., Any], tuple[Any, ...]]
_PARTS_OF_SUBCLASS: Final = 4  # of torch's reduced tensor of a subclass
_PARTS_OF_CLASS: Final = 6  # of cloudpickle's reduced class, the last of which sets its attributes
_TEXTS: Final = frozenset({np.bytes_, np.str_})
_VIEWS: Final = frozenset({np.memmap, np.recarray, np.matrix})  # subclasses of arrays that have nothing but items
_AS_USUAL: Final = cast("_Reduced", NotImplemented)
_IN_MODULES: Final = (type, FunctionType, ModuleType)
_ALIGNED_BYTES: Final = 64  # no item of an array needs more
_ROW_BYTES: Final = 1 << 12  # of a row of an array of structures, up to which its bytes are part of a pickle
_BY_VALUE: Final = threading.RLock()  # held while cloudpickle's list of modules is another one


class Pickled(NamedTuple):
    """A block that is not yet written: its size, and its pieces with the offset of each."""

    nbytes: int
    pieces: list[tuple[int, bytes | memoryview]]


class Part(NamedTuple):
    """Some bytes of a block, and the number of the first one in it."""

    start: int
    array: "NDArray[np.uint8]"

    @property
    def stop(self) -> int:
        """The number after the last byte."""
        return self.start + self.array.nbytes


class _Pickler(pickle.Pickler):
    """Keeps arrays' strides and byte order and all characters of scalars, and takes memoryviews and tensors' data.

    NumPy's own pickles of arrays with gaps are in C order; those of times, and of strided arrays, have the byte order
    of the machine; those of subclasses are writable; those of scalars lack NULs at the end; and writes to the row of an
    array of structures, which is a view, are lost in what comes back of its pickle.
    """

    def reducer_override(self, value: object) -> _Reduced:
        if type(value) is memoryview:
            return _reduced_view(value)
        if type(value) in _TEXTS:
            return _reduced_text(value)
        if is_tensor(value):
            return reduced_tensor(value) or _AS_USUAL
        if type(value).__name__ in _NAMES_OF_GENERATORS and type(value) in generators():
            return _reduced_generator(value)
        return reduced_array(value) if type(value) is np.ndarray else _reduced_view_of_array(value) or _AS_USUAL


def plain_text(scalar: object) -> str | bytes:
    """Return the content of one of NumPy's texts, with the NULs at its end, which an array has not."""
    return cast("str | bytes", scalar)[:]  # not str(), which drops them


def _reduced_text(scalar: object) -> _Reduced:
    return type(scalar), (plain_text(scalar),)


def reduced_array(array: "NDArray[Any]") -> _Reduced:
    """Reduce an array so that it has its strides and its byte order in another process; wide gaps are left out.

    NumPy does so with an array in C order, unless it has times, which lose the flag for writes. An array of objects,
    which has no gaps in a pickle, is left to it, too, but for that flag.
    """
    dtype = array.dtype
    is_in_c_order = array.flags.c_contiguous
    is_usual = dtype.kind not in "mM" and (dtype.isnative or dtype.names is not None)
    if dtype.hasobject or (is_in_c_order and is_usual):
        reduced: Any = array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        is_locked = dtype.hasobject and not array.flags.writeable
        return cast("_Reduced", (*reduced, None, None, _set_locked) if is_locked else reduced)
    if not dtype.itemsize:  # texts without characters
        return np.ndarray, (array.shape, dtype)
    array = without_wide_gaps(array)
    raw = in_one_piece(array)
    if array.flags.c_contiguous:
        return _array_of, (raw, dtype, array.shape)
    return with_strides, (raw, dtype, array.shape, array.strides)


def _set_locked(array: "NDArray[Any]", state: object) -> None:
    cast("Any", array).__setstate__(state)
    array.flags.writeable = False


def _array_of(raw: "NDArray[np.uint8]", dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> "NDArray[Any]":
    return raw.view(dtype).reshape(shape)


def dumps(
    value: object, *, protocol: int = 5, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """Return a pickle of a value, as `pickle.dumps` does; arrays in it keep their dtypes exactly."""
    stream = io.BytesIO()
    _Pickler(stream, protocol, buffer_callback=buffer_callback).dump(value)
    return stream.getvalue()


class _SharingPickler(_Pickler):
    """Keeps which arrays and tensors share memory, too.

    Args:
        stream: for the pickle.
        groups: those that share memory, for each such memory.
    """

    def __init__(self, stream: io.BytesIO, groups: "list[list[Any]]") -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._reduced: dict[int, _Reduced] = {}
        # No other object may get their ids.
        self._arrays = [array for group in groups for array in self._reduce_all(group)]

    def reducer_override(self, value: object) -> _Reduced:
        return self._reduced.get(id(value)) or super().reducer_override(value)

    def _reduce_all(self, group: list[Any]) -> "list[NDArray[Any]]":
        """Note how to reduce arrays and tensors that share memory; return the arrays."""
        arrays: list[NDArray[Any]] = []
        for part in group:
            array, reduced = _over_array(part)
            if array is not None and not array.dtype.hasobject:
                arrays.append(array)
                if reduced is not None:
                    self._reduced[id(part)] = reduced
        starts = [array.__array_interface__["data"][0] for array in arrays]
        spans = [span_of(array.dtype, array.shape, array.strides) for array in arrays]
        first = min((start - before for start, (before, _) in zip(starts, spans, strict=True)), default=0)
        ends = [start - before + size for start, (before, size) in zip(starts, spans, strict=True)]
        end = max(ends, default=0)
        if is_spread(end - first, sum(array.nbytes for array in arrays)):
            return []
        first -= first % _ALIGNED_BYTES  # so that the items stay aligned
        memory = _Memory(end - first)
        for array, start in zip(arrays, starts, strict=True):
            place = memory, start - first, in_one_piece(array), array.dtype, array.shape, array.strides
            self._reduced[id(array)] = written_into, place
        return arrays


def _over_array(part: object) -> "tuple[NDArray[Any] | None, _Reduced | None]":
    """Return an array over the memory of an array, a tensor or a row, and how to make the part of it, if it is another.

    Returns:
        None in place of the array if the part has more than items, as a masked array does, or is a row that is no view.
    """
    given: Any = part
    kind: Any = cast("Any", type(given))
    if kind is np.ndarray:
        return given, None
    if is_tensor(part):
        array: NDArray[Any] | None = array_of(given)
        return array, (tensor_of, (array, dtype_name(given)))
    if isinstance(part, np.void) and not part.flags.owndata:
        array = given.__array__()
        return array, (row_of, (array,))
    if kind in _VIEWS:
        array = given.view(np.ndarray)
        return array, (viewed_as, (array, kind))
    return None, None


def _reduced_view_of_array(value: object) -> _Reduced | None:
    """Reduce a row, or an array of a subclass, to the array over its memory; None for one that NumPy has to pickle.

    A row that is small is reduced to its bytes: a buffer of its own would take several times as long.
    """
    array, reduced = _over_array(value)
    if array is None or reduced is None:
        return None
    if not isinstance(value, np.void):
        return reduced
    if array.dtype.hasobject:
        return None
    if array.nbytes > _ROW_BYTES:
        return reduced
    content = whole_items(array).tobytes()
    return row_over, (bytearray(content) if array.flags.writeable else content, array.dtype)


class _Memory:
    """Memory that arrays share; the pickle has it once, without its content, which each array writes there."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __reduce__(self) -> _Reduced:
        return new_memory, (self._size_bytes,)


def dumps_sharing(value: object, groups: "list[list[Any]]") -> bytes:
    """Return a pickle of a value as `dumps` does, in which arrays and tensors share memory where they do in the value.

    Args:
        value: the value.
        groups: those that share memory, as `shared_within` has them.
    """
    stream = io.BytesIO()
    _SharingPickler(stream, groups).dump(value)
    return stream.getvalue()


def dump(leaf: object, dumps: Callable[..., bytes] = dumps) -> Pickled:
    """Return a leaf as a block, which refers to the leaf's own buffers.

    An exception of the leaf's own code passes through.

    Args:
        leaf: the object.
        dumps: pickles it, as `pickle.dumps` does.
    """
    data, buffers = _dumped(leaf, dumps)
    sizes = [len(buffers), len(data), *(buffer.nbytes for buffer in buffers)]
    head = b"".join(map(_SIZE.pack, sizes)) + data
    pieces: list[tuple[int, bytes | memoryview]] = [(0, head)]
    end = len(head)
    for buffer in buffers:
        pieces.append((aligned(end), buffer))
        end = aligned(end) + buffer.nbytes
    return Pickled(end, pieces)


def _dumped(leaf: object, dumps: Callable[..., bytes]) -> tuple[bytes, list[memoryview]]:
    """Return the pickle of a leaf, and the buffers that it is without."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:  # not contiguous: pickle copies it into the stream
            return True
        return False

    return dumps(leaf, protocol=5, buffer_callback=keep), buffers


class Apart:
    """Elements of a list that are pickled one by one: the list that is rebuilt has no object in two of them.

    That takes twice as long as one pickle, in which an object that is in several elements is there once. It needs
    protocol 5, as buffers do.

    Example:
        >>> array = np.zeros(2)
        >>> one, other = pickle.loads(pickle.dumps(Apart([array, array]), protocol=5))
        >>> one is other
        False
    """

    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements

    def __reduce__(self) -> _Reduced:
        pickled: list[tuple[bytes, list[pickle.PickleBuffer]]] = []
        for element in self._elements:
            data, buffers = _dumped_by_value(element)
            pickled.append((data, list(map(pickle.PickleBuffer, buffers))))
        return _loaded_one_by_one, (pickled,)


def _loaded_one_by_one(pickled: "list[tuple[bytes, list[Any]]]") -> list[Any]:
    return [pickle.loads(data, buffers=buffers) for data, buffers in pickled]


class Pickling(NamedTuple):
    """A way to pickle: a function like `pickle.dumps`, and the class of its picklers."""

    dumps: Callable[..., bytes]
    kind: type[pickle.Pickler]


def pickler() -> Pickling:
    """Return how to pickle for other processes: by cloudpickle, which takes local classes, too, if it is installed."""
    tensor: Any = tensor_type()
    if tensor is not None:
        _REDUCERS[tensor] = _reduced_by_type
    try:
        return _by_cloudpickle(importlib.import_module("cloudpickle"))
    except ImportError:
        return Pickling(pickle.dumps, pickle.Pickler)


@cache
def _by_cloudpickle(module: ModuleType) -> Pickling:
    """Return cloudpickle's way, which sends functions with a cache by value, too, where it sends those below so.

    It also sends by value what is in modules that other processes don't find, and by name a module of a class of its
    own, such as `torch.classes`, which cloudpickle refuses. A memoryview stays one, while cloudpickle alone makes it
    bytes, which lack its format, shape and writability. A class that is sent by value stays as it is in the process
    that defines it, while cloudpickle alone sets all its attributes when another process sends it back. A function of
    `random` or `numpy.random` that the script has by its name draws from the global generator of the process, which has
    a seed of its own; cloudpickle alone sends the program's generator with it, so that all processes draw the same.
    """
    theirs: Any = module.Pickler
    # A chain, since programs add to the table below it later.
    known = ChainMap(_REDUCERS, generators(), theirs.dispatch_table)

    def reducer_override(self: _ByValuePickler, value: object) -> _Reduced:  # a table has no subclasses
        if isinstance(value, _IN_MODULES):
            self.by_value.add(value.__name__ if isinstance(value, ModuleType) else value.__module__)
        if _is_own_module(value):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, type):
            sent = None if self.copies else _reduced_received(value, dumps_copy)
            return sent or _reduced_class(value, theirs.reducer_override(self, value))
        is_subclass = is_tensor(value) and type(value) not in known
        return (reduced_tensor(value) if is_subclass else None) or theirs.reducer_override(self, value)

    def dump(self: _ByValuePickler, value: object) -> None:
        with _ByValue(module) as self.by_value:
            theirs.dump(self, value)

    own = {"dispatch_table": known, "reducer_override": reducer_override, "dump": dump, "copies": False}
    made: type[pickle.Pickler] = type("ValuePickler", (theirs,), own)

    def dumps(value: object, protocol: int | None = None, buffer_callback: Callable[..., Any] | None = None) -> bytes:
        stream = io.BytesIO()
        made(stream, protocol, buffer_callback=buffer_callback).dump(value)
        return stream.getvalue()

    def dumps_copy(kind: type) -> bytes:
        stream = io.BytesIO()
        pickler: Any = made(stream, 5)
        pickler.copies = True
        pickler.dump(kind)
        return stream.getvalue()

    return Pickling(dumps, made)


def dumps_by_name(value: object) -> bytes:
    """Return the pickle of a value for another process, by `pickle` alone, with the global generators by name."""
    stream = io.BytesIO()
    made = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    made.dispatch_table = {**copyreg.dispatch_table, **generators()}
    made.dump(value)
    return stream.getvalue()


@cache
def generators() -> dict[type, Callable[[Any], _Reduced]]:
    """Return reducers for the types of the global generators of random numbers, which send these by name."""
    return {type(_global_generator(place)): _reduced_generator for place in _GENERATORS}


def _global_generator(place: tuple[str, str]) -> object:
    module, name = place
    return cast("object", getattr(importlib.import_module(module), name))


def _reduced_generator(value: object) -> _Reduced:
    for place in _GENERATORS:
        if _global_generator(place) is value:
            return _global_generator, (place,)
    return value.__reduce_ex__(4)


def _is_own_module(value: object) -> TypeGuard[ModuleType]:
    """Return whether a value is a module of a class of its own, for which pickle has no way.

    cloudpickle sends each loaded `torch.X` with a function that uses torch and any name or attribute X.
    """
    if not isinstance(value, ModuleType) or type(value) is ModuleType:
        return False
    return type(value).__reduce__ is object.__reduce__ and sys.modules.get(value.__name__) is value


class _ByValuePickler(Protocol):
    by_value: "_ByValue"
    copies: bool
    """Whether classes that were received are sent by value, too."""


_NAMES: Final[WeakKeyDictionary[type, str]] = WeakKeyDictionary()
"""In pickles, of the classes that were sent or received by value."""
_CLASSES: Final[WeakValueDictionary[str, type]] = WeakValueDictionary()
"""The classes by these names."""
_OWN: Final[WeakSet[type]] = WeakSet()
"""Those that this process defines, or one that it is a fork of."""
_COPIES: Final[WeakKeyDictionary[type, bytes]] = WeakKeyDictionary()
"""Of the others: each as it was received, for processes that lack it."""


def _reduced_class(kind: type, reduced: _Reduced) -> _Reduced:
    """Reduce a class that cloudpickle reduces by value, so that the process that defines it keeps it as it is."""
    if not isinstance(reduced, tuple):
        return reduced
    parts = cast("tuple[Any, ...]", reduced)
    if len(parts) != _PARTS_OF_CLASS:
        return reduced
    make, given, state, _, _, set_state = parts
    if kind not in _NAMES:
        _OWN.add(kind)  # first: another thread may be here
        _keep(kind, uuid4().hex)
    made: Any = (_made_class, (_NAMES[kind], make, given), (set_state, state), None, None, _set_class)
    return cast("_Reduced", made)


def _reduced_received(kind: type, dumps: Callable[[type], bytes]) -> _Reduced | None:
    """Reduce a class that another process defines to its name there, with a copy for processes that lack it."""
    if kind not in _NAMES or kind in _OWN:
        return None
    if kind not in _COPIES:
        _COPIES[kind] = dumps(kind)
    return _received_class, (_NAMES[kind], _COPIES[kind])


def _keep(kind: type, name: str) -> None:
    _NAMES[kind] = name
    _CLASSES[name] = kind


def _made_class(name: str, make: Callable[..., type], given: tuple[Any, ...]) -> type:
    known = _CLASSES.get(name)
    if known is not None and known in _OWN:
        return known
    made = make(*given)
    if getattr(sys.modules.get(made.__module__), made.__qualname__, None) is made:
        _OWN.add(made)  # it was sent by a pickle of cloudpickle's own, which has no name
    else:
        _keep(made, name)
    return made


def _set_class(kind: type, given: tuple[Callable[[type, Any], object], Any]) -> None:
    if kind not in _OWN:
        set_state, state = given
        _COPIES.pop(kind, None)
        set_state(kind, state)


def _received_class(name: str, copy: bytes) -> type:
    known = _CLASSES.get(name)
    return cast("type", pickle.loads(copy)) if known is None else known


class _ByValue:
    """Lets cloudpickle send by value what is in modules that other processes don't find, within a `with` block.

    cloudpickle has one list of such modules. It is as before after the block; meanwhile other threads that have to
    change it wait.
    """

    def __init__(self, cloudpickle: ModuleType) -> None:
        self._cloudpickle: Any = cloudpickle
        self._search = ModuleSearch()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def add(self, name: object) -> None:
        """Have the functions and classes of a module sent by value if other processes don't find it."""
        if not isinstance(name, str) or self._search.finds(name):
            return
        self._undo.enter_context(_BY_VALUE)
        found = sys.modules[name]
        if type(found) is ModuleType and found.__name__ not in self._cloudpickle.list_registry_pickle_by_value():
            self._cloudpickle.register_pickle_by_value(found)
            self._undo.callback(self._cloudpickle.unregister_pickle_by_value, found)


def _reduced_cached(known: object) -> _Reduced:
    """Reduce a function of `functools.lru_cache`; in another process its cache is empty."""
    function: Any = known
    module, name = function.__module__, function.__qualname__
    is_named = module != "__main__" and getattr(sys.modules.get(module), name, None) is function
    if is_named and ModuleSearch().finds(module):
        return str(name)
    return _cached, (function.__wrapped__, function.cache_parameters())


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> object:
    return lru_cache(**parameters)(function)


def _reduced_view(view: memoryview) -> _Reduced:
    """Reduce a memoryview; in another process it is over a copy of its memory."""
    array = np.array(view, order="C")
    array.flags.writeable = not view.readonly
    return _view, (array, view.format if len(view.format) == 1 and view.nbytes else "")


def _view(array: "NDArray[Any]", casts: str) -> memoryview:
    whole: Any = memoryview(cast("memoryview", array))
    view: memoryview = whole.cast("B").cast(casts, array.shape) if casts else whole
    return view  # cast, since NumPy has other names for some formats


def reduced_tensor(value: object) -> _Reduced | None:
    """Reduce a tensor to its data; None for one that torch has to pickle.

    torch's own pickle contains a copy of the data, takes many times as long, and can't be read if the tensor is
    unsigned.
    """
    tensor: Any = value
    array = array_of(tensor)
    if array is None:
        return _reduced_subclass(tensor)
    axes = memory_order(array)
    if axes is None and not array.flags.c_contiguous:
        return tensor_of, (array, dtype_name(tensor))
    ordered = np.ascontiguousarray(array if axes is None else array.transpose(axes)).reshape(-1)
    data: Any = pickle.PickleBuffer(cast("bytes", ordered.view(np.uint8)))
    if axes is None:
        return tensor_over, (data, dtype_name(tensor), array.shape)
    return permuted_tensor_over, (data, dtype_name(tensor), array.transpose(axes).shape, axes)


def _reduced_subclass(value: object) -> _Reduced | None:
    """Reduce a tensor of a subclass, such as an image of torchvision, or one with attributes: all but its data.

    torch reduces it to a call with the function that makes its data, the arguments of that, and its state.
    """
    tensor: Any = value
    kind, base = type(value), tensor_type()
    if not is_strided(tensor) or any(
        getattr(kind, name) is not getattr(base, name) for name in ("__reduce_ex__", "__torch_dispatch__")
    ):
        return None
    plain = tensor.as_subclass(base)
    if array_of(plain) is None or tensor.is_shared():
        return None
    rebuild, given = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(given) != _PARTS_OF_SUBCLASS or given[1] is not kind:
        return None
    function, arguments = cast("tuple[Callable[..., Any], tuple[Any, ...]]", reduced_tensor(plain))
    return rebuild, (function, kind, arguments, given[3])


def _reduced_by_type(value: object) -> _Reduced:
    found = reduced_tensor(value) if is_tensor(value) else _reduced_view_of_array(value)
    return cast("_Reduced", value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)) if found is None else found


_GENERATORS: Final = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))
"""The global generators of random numbers: their modules and names."""
_NAMES_OF_GENERATORS: Final = frozenset({"Random", "RandomState"})
_REDUCERS: Final[dict[type, Callable[[Any], _Reduced]]] = {
    type(lru_cache(len)): _reduced_cached,
    memoryview: _reduced_view,
    np.bytes_: _reduced_text,
    np.str_: _reduced_text,
    np.ndarray: reduced_array,
    **dict.fromkeys((np.void, np.record, *_VIEWS), _reduced_by_type),
}
"""The reducers of `pickler` beside cloudpickle's; that of tensors is added once torch is imported."""


def dump_by_value(leaf: object) -> Pickled:
    """Return a leaf as a block, by `pickle` or else by `pickler`, which sends the script's own classes by value."""
    with Caught(Exception):
        return dump(leaf)
    return dump(leaf, pickler().dumps)


def _dumped_by_value(element: object) -> tuple[bytes, list[memoryview]]:
    with Caught(Exception):
        return _dumped(element, dumps)
    return _dumped(element, pickler().dumps)


def stream_of(block: memoryview) -> memoryview:
    """Return the pickle of a block that this process made, without its buffers."""
    start = (2 + _SIZE.unpack_from(block, 0)[0]) * _SIZE.size
    return block[start : start + _SIZE.unpack_from(block, _SIZE.size)[0]]


def load_parts(parts: "Sequence[Part]", *, copied_bytes: int) -> object:
    """Return the leaf of a block in parts, as `load` does."""
    starts = [part.start for part in parts]

    def between(start: int, stop: int) -> memoryview:
        first, array = parts[bisect_right(starts, start) - 1]
        return array.data[start - first : stop - first]

    return _load(between, parts[-1].stop, copied_bytes)


def load(block: memoryview, *, copied_bytes: int) -> object:
    """Return the leaf of a block; its sender must be trusted.

    Args:
        block: the block's bytes.
        copied_bytes: buffers of at most this size are copied; larger ones stay views of the block.

    Raises:
        MessageError: it is no such block, or this process can't rebuild what was pickled.
    """
    return _load(lambda start, stop: block[start:stop], block.nbytes, copied_bytes)


def _load(between: Callable[[int, int], memoryview], nbytes: int, copied_bytes: int) -> object:
    size = _SIZE.size
    if nbytes < 2 * size:
        raise MessageError("a pickled leaf is truncated")
    (num_buffers,), (data_bytes,) = _SIZE.iter_unpack(between(0, 2 * size))
    end = (2 + num_buffers) * size
    if end + data_bytes > nbytes:
        raise MessageError("a pickled leaf is truncated")
    sizes = [each for (each,) in _SIZE.iter_unpack(between(2 * size, end))]
    data, end = between(end, end + data_bytes), end + data_bytes
    buffers: list[memoryview | NDArray[np.uint8]] = []
    for each in sizes:
        start = aligned(end)
        end = start + each
        if end > nbytes:
            raise MessageError("a pickled leaf's buffers are truncated")
        # NumPy releases the GIL to copy large arrays.
        buffers.append(np.array(between(start, end)) if each <= copied_bytes else between(start, end))
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        raise MessageError(
            f"a pickled leaf can't be rebuilt in this process ({type(error).__name__}: {error}). Its class must be "
            "importable here, in the sender's version."
        ) from error

"""Pickles of values with tensors and arrays, whose data is passed as buffers beside the pickle.

torch's own pickles of tensors either contain a copy of the data, or name shared memory, with a descriptor for each
tensor.
"""

import copyreg
import functools
import io
import os
import pickle
from collections import ChainMap
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from penstock._caught import Caught
from penstock._pickles import generators, pickler, reduced_array, reduced_tensor
from penstock._processes import missing, unimportable
from penstock._tensors import dtype_name, obstacle, on_host, tensor_bytes, tensor_over
from penstock.torch._data_loader._mapped_memory import MappedFile, ProcessMaps
from penstock.torch._data_loader._torch_private import shared_descriptor, storage_of_process

if TYPE_CHECKING:
    from collections.abc import Callable

_PROTOCOL: Final = 5
_OF_MEMMAP: Final = ("filename", "mode", "offset")
_GRADIENT: Final = (
    "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing "
    "process boundaries. If you just want to transfer the data, call detach() on the tensor before collating."
)


_picklers: Final[dict[type, type[pickle.Pickler]]] = {}


class Sealed:
    """A value that is pickled already; the receiver gets an `Arrived`.

    Args:
        value: the value to send.
        shares: whether tensors that share memory share it in the receiver, too. Then all of that memory is sent;
            otherwise only the elements of each tensor. Use True for receivers that have only what they can import.
    """

    def __init__(self, value: object, *, shares: bool = False) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        with Caught(Exception) as caught:
            self._data = _dumps(pickle.Pickler, value, self._buffers, shares=shares)
            if shares and (unknown := missing(self._data)):
                raise pickle.PicklingError(unknown)
        if caught.error is None:
            return
        self._buffers = []  # a receiver can't import objects that a script or notebook defines: send by value
        self._data = _dumps(_other_pickler(caught.taken()), value, self._buffers, shares=shares)
        if shares and (unknown := unimportable(self._data)):
            raise pickle.PicklingError(unknown)

    @property
    def size_bytes(self) -> int:
        """The size of the pickle and its buffers."""
        return len(self._data) + sum(memoryview(each).nbytes for each in self._buffers)

    def __reduce__(self) -> "tuple[type[Arrived], tuple[bytes, list[pickle.PickleBuffer]]]":
        return Arrived, (self._data, self._buffers)


class Arrived:
    """A `Sealed` value in the receiver, unpickled on access.

    Args:
        data: the pickle.
        buffers: the data of tensors and arrays.
    """

    def __init__(self, data: bytes, buffers: list[Any]) -> None:
        self._data = data
        self._buffers = buffers

    @functools.cached_property
    def value(self) -> object:
        """The value, over the memory in which it arrived, unpickled once."""
        return self.opened()

    def opened(self, copied_bytes: int = 0) -> object:
        """Unpickle the value, and return it.

        Args:
            copied_bytes: data up to this size is copied, so that it doesn't keep the memory in which it arrived.
        """
        buffers = [np.array(each) if memoryview(each).nbytes <= copied_bytes else each for each in self._buffers]
        return pickle.loads(self._data, buffers=buffers)


def _other_pickler(error: BaseException) -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, which pickles lambdas and local functions, too; without it, raise the error."""
    other = pickler().kind
    if other is pickle.Pickler:
        raise error from None
    return other


def _dumps(kind: type[pickle.Pickler], value: object, buffers: list[pickle.PickleBuffer], *, shares: bool) -> bytes:
    """Return a pickle, whose buffers are added to a list."""
    if not shares:
        if kind not in _picklers:
            _picklers[kind] = _tensor_pickler(kind)
        return _dumped_by(_picklers[kind], value, buffers)
    known = len(buffers)
    maps = ProcessMaps()
    data = _dumped_by(_tensor_pickler(kind, maps), value, buffers)
    if not maps.hold():  # memory of a map that has ended may be other memory by now
        del buffers[known:]
        data = _dumped_by(_tensor_pickler(kind, ProcessMaps(is_empty=True)), value, buffers)
    return data


def _dumped_by(made: type[pickle.Pickler], value: object, buffers: list[pickle.PickleBuffer]) -> bytes:
    file = io.BytesIO()

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffer.raw()
        except BufferError:  # not contiguous: pickle copies it into the stream
            return True
        buffers.append(buffer)
        return False

    made(file, _PROTOCOL, buffer_callback=keep).dump(value)
    return file.getvalue()


def _tensor_pickler(kind: type[pickle.Pickler], maps: ProcessMaps | None = None) -> type[pickle.Pickler]:
    """Return a class of picklers that pickles tensors as buffers.

    Args:
        kind: its base.
        maps: the maps of this process, for picklers that send shared memory; None for those that send elements.
    """
    ours: dict[type, Callable[[Any], object]] = {torch.Tensor: _reduced, np.ndarray: _reduced_array}
    if maps is not None:
        mapped = partial(_reduced_mapped, maps)
        ours = {
            torch.Tensor: _reduced_shared,
            torch.UntypedStorage: partial(_reduced_storage, maps),
            np.ndarray: mapped,
            np.memmap: mapped,
            **generators(),
        }
    own: Any = kind
    theirs: Any = copyreg.dispatch_table if kind is pickle.Pickler else own.dispatch_table
    if maps is not None and CodeType in theirs:
        ours[CodeType] = partial(_reduced_code, theirs[CodeType])
    parts: dict[str, object] = {"dispatch_table": ChainMap(ours, theirs)}
    if kind is pickle.Pickler and maps is None:  # the other kind does so itself
        parts["reducer_override"] = _reduced_subclass
    made: Any = type("TensorPickler", (kind,), parts)
    return cast("type[pickle.Pickler]", made)


def _reduced_code(reduced: "Callable[[CodeType], object]", code: CodeType) -> object:
    """Reduce code with the name of its file, which tracebacks show with the line; cloudpickle alone leaves it out."""
    return _named_code, (code.co_filename, reduced(code))


def _named_code(name: str, reduced: "tuple[Callable[..., CodeType], tuple[Any, ...]]") -> CodeType:
    make, given = reduced
    return make(*given).replace(co_filename=name)


def _reduced_subclass(pickler: object, value: object) -> object:
    del pickler
    is_subclass = isinstance(value, torch.Tensor) and type(value) is not torch.Tensor
    return (reduced_tensor(value) if is_subclass else None) or NotImplemented


def _reduced(tensor: "torch.Tensor") -> object:
    """Reduce a tensor to its elements, as a buffer beside the pickle; torch pickles those without plain bytes."""
    found = reduced_tensor(tensor)
    if found is not None:
        return found
    if obstacle(tensor) or not on_host(tensor):
        return _by_torch(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(_GRADIENT)
    data = _buffer(tensor_bytes(tensor.detach()))
    return _tensor_with_gradient if tensor.requires_grad else tensor_over, (
        data,
        dtype_name(tensor),
        tuple(tensor.shape),
    )


def _reduced_array(array: "np.ndarray[Any, Any]") -> object:
    """Reduce an array; one that is read-only as a copy, since it is writable where torch's loader sends it."""
    return reduced_array(array if array.flags.writeable else array.copy("K"))


def _by_torch(value: object) -> object:
    known: Any = value
    return known.__reduce_ex__(_PROTOCOL)


def _buffer(data: object) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(cast("bytes", data))  # any object with a buffer will do


def _tensor_with_gradient(data: object, name: str, shape: tuple[int, ...]) -> object:
    tensor: Any = tensor_over(data, name, shape)
    return tensor.requires_grad_()


def _reduced_shared(tensor: "torch.Tensor") -> object:
    """Reduce a tensor to a view and its memory, which other tensors may share."""
    plain = not tensor.is_conj() and not tensor.is_neg() and tensor.is_leaf
    if obstacle(tensor) or not on_host(tensor) or not plain:
        return _by_torch(tensor)
    place = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    given = (tensor.untyped_storage(), dtype_name(tensor), place)
    return _view_with_gradient if tensor.requires_grad else _view, given


def _reduced_storage(maps: ProcessMaps, storage: "torch.UntypedStorage") -> object:
    """Reduce a tensor's memory to the descriptor of shared memory, to its place in a mapped file, or to a buffer."""
    if storage.is_shared() and storage.filename is None:
        descriptor, size_bytes = shared_descriptor(storage)
        if descriptor >= 0:  # it is -1 for a private map
            return storage_of_process, (os.getpid(), descriptor, size_bytes)
    if storage.device.type != "cpu":
        return _by_torch(storage)
    if (place := maps.find(storage.data_ptr(), storage.nbytes())) is not None:
        return _mapped_storage, (place.file, place.begin, storage.nbytes())
    shown: Any = torch.empty(0, dtype=torch.uint8)
    return _storage, (_buffer(tensor_bytes(shown.set_(storage))), storage.nbytes())


def _mapped_storage(file: MappedFile, begin: int, size_bytes: int) -> object:
    """Return a tensor's memory in a mapped file; writes to a read-only one, which torch doesn't have, stay here."""
    private = replace(file, access="c") if file.access == "r" else file
    return _storage(private.open()[begin : begin + size_bytes], size_bytes)


def _reduced_mapped(maps: ProcessMaps, array: "np.ndarray[Any, Any]") -> object:
    """Reduce an array to its place in a mapped file; any other array as usual."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = cast("Any", owner.base)
    if owner is None:
        return array.__reduce_ex__(_PROTOCOL)
    spans = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(span for span in spans if span < 0)
    size = sum(map(abs, spans)) + array.itemsize if array.size else 0
    place = maps.find(array.__array_interface__["data"][0] - before, size)
    if place is None:
        return array.__reduce_ex__(_PROTOCOL)
    attributes = {name: getattr(array, name) for name in _OF_MEMMAP} if isinstance(array, np.memmap) else None
    return _mapped_array, (place.file, place.begin + before, array.dtype, array.shape, array.strides, attributes)


def _mapped_array(
    file: MappedFile,
    offset: int,
    dtype: "np.dtype[Any]",
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    attributes: dict[str, object] | None,
) -> object:
    array = np.ndarray(shape, dtype, file.open(), offset, strides)
    if attributes is None:
        return array
    memmap = array.view(np.memmap)
    vars(memmap).update(attributes)
    return memmap


def _storage(data: object, size_bytes: int) -> object:
    tensor: Any = tensor_over(data, "uint8", (size_bytes,))
    return tensor.untyped_storage()


def _view(storage: object, name: str, place: tuple[int, tuple[int, ...], tuple[int, ...]]) -> "torch.Tensor":
    view: Any = torch.empty(0, dtype=getattr(torch, name))
    return cast("torch.Tensor", view.set_(storage, *place))


def _view_with_gradient(storage: object, name: str, place: tuple[int, tuple[int, ...], tuple[int, ...]]) -> object:
    return _view(storage, name, place).requires_grad_()


def pickled(value: object) -> bytes:
    """Return a value as one pickle for `pickle.loads`."""
    with Caught(Exception):
        return pickle.dumps(value, _PROTOCOL)
    return bytes(pickler().dumps(value, protocol=_PROTOCOL))  # by value, for a script's own class; or raises again

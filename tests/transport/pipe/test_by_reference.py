"""Views of shared memory, strided ones too, and bytes in it are sent by reference: no other memory is read."""

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray

from penstock.errors import MessageError
from penstock.transport import Bytes, SlotPlace, TensorPipeReader, TensorPipeWriter
from tests.profiles import in_short
from tests.transport.encoding.samples import Ends, assert_same, learn

Array = NDArray[Any]
DTYPES = st.sampled_from(["u1", "<i2", ">f4", "f8", "c16", "m8[s]", "V3", "S3", [("a", "i1"), ("b", "f8")]])


def opposite(array: Array) -> Array:
    """Return it backwards along each axis."""
    return np.asarray(array[(slice(None, None, -1),) * array.ndim])  # not a scalar, of which only copies are sent


def windows(array: Array) -> Array:
    """Return overlapping windows along the last axis."""
    return sliding_window_view(array, 2, axis=-1) if array.ndim and array.shape[-1] > 1 else array


def broadcast(array: Array) -> Array:
    """Return it thrice, over the same memory."""
    return np.broadcast_to(array, (3, *array.shape))


def squeezed(array: Array) -> Array:
    """Return it without axes of length 1."""
    return np.squeeze(array)


def field(array: Array) -> Array:
    """Return one field of structures, whose stride isn't a multiple of its size."""
    view: Array = array["b"] if array.dtype.names else array
    return view


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Return what makes a view of an array of that shape by a few steps."""
    index = draw(hnp.basic_indices(shape, allow_ellipsis=True, allow_newaxis=True))
    axes = draw(st.permutations(range(np.empty(shape)[index].ndim)))
    steps = draw(st.lists(st.sampled_from([opposite, windows, broadcast, field, squeezed]), max_size=3))

    def view(array: Array) -> Array:
        viewed: Array = array[index].transpose(axes) if np.empty(shape)[index].ndim else np.asarray(array[index])
        for step in steps:
            viewed = step(viewed)
        return viewed

    return view


def random_contents(array: Array) -> None:
    """Fill an array with bytes that differ."""
    array.view(np.uint8).reshape(-1)[...] = np.resize(np.arange(251, dtype=np.uint8), array.nbytes)


@in_short(10)
@given(data=st.data(), dtype=DTYPES, shape=hnp.array_shapes(min_dims=1, max_dims=4, max_side=5), copy=st.booleans())
def test_numpy_views_arrive_as_they_are(data: Any, dtype: Any, shape: tuple[int, ...], *, copy: bool) -> None:
    """Any view of shared memory arrives equal, as the same memory with the same strides, or as a copy on demand."""
    make = data.draw(views(shape))
    with TensorPipeReader(copy=copy) as reader, TensorPipeWriter(reader.address) as writer:
        base = writer.empty(np.empty(shape, dtype))
        random_contents(base)
        view = make(base)
        writer.send({"view": view, "base": base})
        received = reader.receive()
        if view.nbytes and np.shares_memory(view, base):
            assert writer.counters.copied_bytes == 0
        assert received["view"].dtype == view.dtype
        assert received["view"].shape == view.shape
        assert received["view"].tobytes() == view.tobytes()
        if not copy and view.nbytes and np.shares_memory(view, base):
            moving = [axis for axis, size in enumerate(view.shape) if size > 1]
            assert [received["view"].strides[axis] for axis in moving] == [view.strides[axis] for axis in moving]
            assert np.shares_memory(received["view"], received["base"])
            base.view(np.uint8)[...] = 0x5A
            assert received["view"].tobytes() == view.tobytes()
        del received


def test_views_of_other_memory_are_copied() -> None:
    """A strided view of memory that isn't shared, or of text, arrives in one piece, equal."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        text = writer.empty(np.empty(10, "<U4"))
        text[...] = [f"t{number}" for number in range(10)]
        own = np.arange(100).reshape(10, 10)[::-2, 1:3]
        writer.send([text[::-3], own])
        received = reader.receive()
        assert_same([np.array(text[::-3]), np.array(own)], received)
        assert writer.counters.shared_bytes == 0


@in_short(10)
@given(data=st.data(), copy=st.booleans())
def test_torch_views_arrive_as_they_are(data: Any, *, copy: bool) -> None:
    """Any view of a shared tensor, also one that repeats or overlaps itself, is the same memory at the reader."""
    torch: Any = pytest.importorskip("torch")
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))
    dtype = data.draw(st.sampled_from([torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.complex64]))
    slices = [slice(data.draw(st.integers(0, size - 1)), size, data.draw(st.integers(1, 3))) for size in shape]
    axes = data.draw(st.permutations(range(len(shape))))
    how = data.draw(st.sampled_from(["plain", "expanded", "unfolded", "strided"]))
    with TensorPipeReader(copy=copy) as reader, TensorPipeWriter(reader.address) as writer:
        base = writer.empty(torch.empty(shape, dtype=dtype))
        base.copy_(torch.arange(base.numel()).reshape(shape))
        view = base[tuple(slices)].permute(*axes)
        if how == "expanded":
            view = view.unsqueeze(0).expand(4, *view.shape)
        elif how == "unfolded":
            view = view.unfold(0, min(2, view.shape[0]), 1)
        elif how == "strided":
            view = base.as_strided((base.numel(), 2), (1, 0))
        writer.send([view, base])
        received, base_there = reader.receive()
        assert writer.counters.copied_bytes == 0
        assert (received.shape, received.dtype) == (view.shape, view.dtype)
        assert torch.equal(received, view)
        base.zero_()
        assert torch.equal(received, view) == (not copy or not bool(view.numel()) or bool((received == 0).all()))
        del received, base_there


def located(array: Array) -> tuple[bytes, bytes]:
    """Return the head and the description of an array that is sent by reference."""
    message = Ends(locate=lambda _address, _nbytes: "there").sent(array)
    assert message.places == ("there",)
    assert message.description is not None
    return message.head, message.description


def read(head: bytes, description: bytes, place: bytes, *, copy: bool = False) -> Any:
    """Return the array that a reader makes of it, at a place with these bytes."""
    ends = Ends()
    ends.learn(description)
    return ends.decode(head, places=[place], copy=copy)


@pytest.mark.parametrize("copy", [False, True])
def test_a_view_that_reaches_out_of_its_place_is_refused(*, copy: bool) -> None:
    """One byte less than a view spans, forwards or backwards, is a MessageError."""
    base = np.zeros(1000, np.uint8)
    for view in (base[2:900:7], base[900:2:-7], base.reshape(10, 100).T, np.broadcast_to(base[:5], (1 << 50, 5))):
        message = located(view)
        spans = sum((size - 1) * abs(step) for size, step in zip(view.shape, view.strides, strict=True)) + 1
        assert read(*message, bytes(spans), copy=copy).shape == view.shape
        with pytest.raises(MessageError, match=f"a place has {spans - 1} bytes; its leaf needs {spans}"):
            read(*message, bytes(spans - 1), copy=copy)


def test_a_copy_takes_no_more_than_its_place() -> None:
    """An array of a terabyte in five bytes is no terabyte where the reader makes copies."""
    message = located(np.broadcast_to(np.arange(5, dtype=np.uint8), (1 << 38, 5)))
    tracemalloc.start()
    try:
        received = read(*message, bytes(range(5)), copy=True)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert received[-1].tolist() == [0, 1, 2, 3, 4]


IMPOSSIBLE: list[list[object]] = [
    ["strided array", "|u1", [4], [1 << 63]],
    ["strided array", "|u1", [1 << 40], [1 << 40]],
    ["strided array", "|u1", [4], [1, 1]],
    ["strided array", "|u1", [4], [True]],
    ["strided array", "|u1", [4], ["1"]],
    ["strided array", "|u1", [-4], [1]],
    ["strided array", "|u1", [1 << 40, 1 << 40], [0, 0]],
    ["strided array", "<U4", [4], [0]],
    ["strided array", "|O", [4], [8]],
    ["strided tensor", "float32", [4], [-1]],
    ["strided tensor", "Tensor", [4], [2]],
    ["strided tensor", "float32", [1 << 40], [1 << 40]],
]


def test_impossible_strides_are_refused() -> None:
    """A description with strides that no view has is refused when it is learned."""
    for leaf in IMPOSSIBLE:
        with pytest.raises(MessageError):
            learn(json.dumps({"penstock": 1, "tree": None, "leaves": [leaf]}).encode())


def test_a_place_out_of_its_region_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that names a place which reaches out of its region is refused before anything is read."""
    far = struct.Struct("<IIQQ")

    def beyond(place: SlotPlace) -> bytes:
        return far.pack(place.slot, place.region, place.start_bytes, 1 << 40)

    monkeypatch.setattr("penstock.transport._pipe._socket._pack_place", beyond)
    refused = pytest.raises(MessageError, match="refused: a slot must be inside its region")
    with TensorPipeReader() as reader, refused, TensorPipeWriter(reader.address) as writer:
        base = writer.empty(np.empty((100, 100)))
        writer.send(as_strided(base, (100, 50), (base.strides[0], 2 * base.strides[1])))
        with pytest.raises(MessageError, match="a slot must be inside its region"):
            reader.receive()


NUMBERS = np.arange(1 << 16, dtype=np.uint32)
RECORDS = [{"name": f"record {number}", "number": number} for number in range(4_000)]
JSON = json.dumps(RECORDS).encode()
PACKED = zlib.compress(NUMBERS.tobytes(), level=0)


def is_shared(handle: Bytes) -> bool:
    """Return whether all of a handle's bytes lie in one mapping of memory that has no name in any folder."""
    array = np.frombuffer(cast("bytes", handle), np.uint8)
    start = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= start and start + array.nbytes <= last:
            return "/memfd:" in line
    return False


def test_fetched_bytes_are_parsed_where_they_lie() -> None:
    """Handles arrive as views of shared memory, and their memory comes back with the last one."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        memory = writer.empty(np.empty(NUMBERS.nbytes + 8, np.uint8))  # as a socket's `recv_into` would fill it
        memory[8:] = NUMBERS.view(np.uint8)
        writer.send({"json": Bytes(JSON), "packed": Bytes(bytearray(PACKED)), "etag": Bytes(b"small")})
        writer.send({"body": Bytes(memory)[8:], "status": 200})
        del memory
        fetched: Any = reader.receive()
        response: Any = reader.receive()
        handles = [fetched["json"], fetched["packed"], response["body"]]
        assert [type(handle) for handle in handles] == [Bytes] * 3
        assert [is_shared(handle) for handle in [*handles, fetched["etag"]]] == [True, True, True, False]
        assert all(handle.readonly for handle in handles)
        counters = writer.counters
        assert len(JSON) + len(PACKED) <= counters.copied_bytes < len(JSON) + len(PACKED) + 5 * 64
        assert (counters.shared_bytes, counters.pickled) == (NUMBERS.nbytes, 0)

        assert json.loads(fetched["json"]) == RECORDS
        assert np.array_equal(np.frombuffer(zlib.decompress(fetched["packed"]), np.uint32), NUMBERS)
        numbers = np.frombuffer(response["body"], np.uint32)
        assert np.array_equal(numbers, NUMBERS)
        parts, etag = [fetched["json"][2:], numbers], fetched["etag"]
        del fetched, response, handles, numbers
        for held in (2, 1, 0):
            memory_counters = writer.arena.counters
            assert memory_counters.leased - memory_counters.returned == held
            del parts[:1]
        assert etag == b"small"

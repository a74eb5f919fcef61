"""Bytes of any owner read as the equal `bytes` do, and slices of them share."""

import array
import ctypes
import mmap
import operator
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.transport import Bytes
from tests.profiles import in_short
from tests.transport.owners import Memory

FEW = st.binary(max_size=12).map(lambda data: bytes(byte % 3 for byte in data))  # so that parts are found
ENDS = st.none() | st.integers(-15, 15)
SLICES = st.builds(slice, ENDS, ENDS, st.sampled_from([None, 1, 1, 2, -1, -3]))
PARTS = FEW.map(lambda data: data[:3])


def result_of(call: Callable[[], object]) -> object:
    """Return what the call returns, or the type of what it raises."""
    try:
        return call()
    except (TypeError, ValueError, IndexError) as error:
        return type(error)


@in_short(10)
@given(FEW, st.lists(SLICES, max_size=4))
def test_slices_of_slices_are_those_of_bytes(data: bytes, chain: list[slice]) -> None:
    """Any chain of slices gives the bytes, the length, the items and the readonly flag that `bytes` would have."""
    handle, expected = Bytes(data), data
    for part in chain:
        handle, expected = handle[part], expected[part]
        assert type(handle) is Bytes
        assert bytes(handle) == handle.tobytes() == bytes(memoryview(handle)) == expected
        assert list(handle) == list(expected)
        assert list(reversed(handle)) == list(reversed(expected))
        assert (len(handle), handle.nbytes, bool(handle)) == (len(expected), len(expected), bool(expected))
        assert handle.readonly


@given(FEW, st.integers(-15, 15))
def test_items_are_those_of_bytes(data: bytes, position: int) -> None:
    """A position gives the byte there as a number, from the end if negative, and an IndexError outside."""
    assert result_of(lambda: Bytes(data)[position]) == result_of(lambda: data[position])


@in_short(10)
@given(data=FEW, sub=PARTS | st.integers(-1, 4) | st.just(300), start=ENDS, end=ENDS)
def test_searches_equal_those_of_bytes(data: bytes, sub: bytes | int, start: int | None, end: int | None) -> None:
    """Bytes or one byte are found where `bytes` finds them; a wrong byte is the same error."""
    for name in ("find", "rfind", "index", "rindex", "count"):
        expected = result_of(partial(getattr(data, name), sub, start, end))
        for wanted in (sub, Bytes(sub) if isinstance(sub, bytes) else sub):
            assert result_of(partial(getattr(Bytes(data), name), wanted, start, end)) == expected


@in_short(10)
@given(FEW, st.lists(PARTS, max_size=3), ENDS, ENDS)
def test_starts_and_ends_are_those_of_bytes(
    data: bytes, parts: list[bytes], start: int | None, end: int | None
) -> None:
    """One choice or a tuple of them is found, inside any span, as `bytes` finds it."""
    handle = Bytes(data)
    for part in parts:
        assert handle.startswith(Bytes(part), start, end) == data.startswith(part, start, end)
        assert handle.endswith(Bytes(part), start, end) == data.endswith(part, start, end)
    assert handle.startswith(tuple(parts), start, end) == data.startswith(tuple(parts), start, end)
    assert handle.endswith(tuple(parts), start, end) == data.endswith(tuple(parts), start, end)


@in_short(10)
@given(FEW, FEW)
def test_comparisons_are_those_of_bytes(first: bytes, second: bytes) -> None:
    """Equality and order against anything that holds bytes, on either side, are by value."""
    handle = Bytes(first)
    for other in (second, bytearray(second), Bytes(second), Bytes(bytearray(second))):
        assert (handle == other) is (other == handle) is (first == second)
        assert (handle != other) is (other != handle) is (first != second)
        assert (handle < other, handle <= other) == (first < second, first <= second)
        assert (handle > other, handle >= other) == (first > second, first >= second)
        assert (other < handle, other > handle) == (second < first, second > first)
    assert (handle == memoryview(second)) is (memoryview(second) == handle) is (first == second)


@in_short(10)
@given(st.binary(max_size=200))
def test_the_hash_is_that_of_bytes(data: bytes) -> None:
    """A read-only handle is found in sets and dictionaries under the equal bytes, and the other way round."""
    assert hash(Bytes(data)) == hash(data)
    assert {Bytes(data): 1}[cast("Bytes", data)] == {data: 1}[cast("bytes", Bytes(data))] == 1


@given(FEW, PARTS | st.integers(0, 3))
def test_membership_and_texts_are_those_of_bytes(data: bytes, sub: bytes | int) -> None:
    """`in`, `hex`, `decode` and `+` give what `bytes` gives."""
    handle = Bytes(data)
    assert (sub in handle) is (sub in data)
    assert (handle.hex(), handle.hex(":"), handle.hex("-", 2)) == (data.hex(), data.hex(":"), data.hex("-", 2))
    assert handle.decode() == handle.decode("ascii", "replace") == data.decode()
    assert handle + b"a" == data + b"a"
    assert b"a" + cast("bytes", handle) == b"a" + data
    assert b"-".join([handle, data]) == b"-".join([data, data])


@in_short(10)
@given(FEW)
def test_the_other_methods_of_bytes_work_on_a_copy(data: bytes) -> None:
    """Methods that have to make new bytes return the result of `bytes`."""
    handle = cast("bytes", Bytes(data))
    assert handle.split(b"\1") == data.split(b"\1")
    assert handle.partition(b"\2") == data.partition(b"\2")
    assert handle.strip(b"\0") == data.strip(b"\0")
    with pytest.raises(AttributeError, match="'Bytes' object has no attribute 'read'"):
        _ = cast("memoryview", handle).read  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - the point


def test_other_objects_are_unequal_and_have_no_order() -> None:
    """Numbers, text and lists differ from every handle, and can't be compared or found."""
    handle = Bytes(b"1")
    for other in (1, "1", [49], None):
        assert handle != other
        for operator_of in (operator.lt, operator.ge, operator.add):
            with pytest.raises(TypeError):
                operator_of(cast("bytes", handle), cast("bytes", other))
    assert result_of(lambda: "1" in handle) is TypeError
    assert handle == np.array([49], np.uint8)
    assert Bytes(b"12") != memoryview(b"12").cast("B", (1, 2))


def of_mmap(data: bytes) -> mmap.mmap:
    """Return a map that holds the data."""
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    return mapped


def of_lease(data: bytes) -> object:
    """Return a lease that holds the data."""
    memory = Memory()
    lease = memory.lease(memory.allocate(len(data)), 0)
    memoryview(cast("bytes", lease))[:] = data
    return lease


OWNERS: list[tuple[Callable[[bytes], object], bool]] = [
    (bytes, True),
    (bytearray, False),
    (memoryview, True),
    (lambda data: memoryview(bytearray(data)), False),
    (lambda data: memoryview(bytearray(data)).toreadonly(), True),
    (lambda data: memoryview(b"__" + data)[2:], True),
    (lambda data: np.frombuffer(data, np.uint8), True),
    (lambda data: np.frombuffer(bytearray(data), np.uint8).reshape(2, 2), False),
    (lambda data: np.frombuffer(bytearray(b"__" + data), np.uint8)[2:], False),
    (lambda data: array.array("B", data), False),
    (lambda data: (ctypes.c_char * 4).from_buffer_copy(data), False),
    (lambda data: (ctypes.c_ubyte * 4).from_buffer_copy(data), False),
    (of_mmap, False),
    (of_lease, False),
    (Bytes, True),
    (lambda data: Bytes(bytearray(data)), False),
]


@pytest.mark.parametrize(("make", "readonly"), OWNERS)
def test_every_owner_is_shared(make: Callable[[bytes], object], readonly: bool) -> None:  # noqa: FBT001 - by name
    """The handle sees the owner's own memory, is writable if that is, and equals its bytes."""
    owner = make(b"\1\2\3\4")
    handle = Bytes(owner)
    seen = np.frombuffer(cast("bytes", handle), np.uint8)
    assert handle == b"\1\2\3\4"
    assert np.shares_memory(seen, np.frombuffer(cast("bytes", owner), np.uint8))
    assert (handle.readonly, memoryview(handle).readonly, seen.flags.writeable) == (readonly, readonly, not readonly)
    if not readonly:
        seen[1] = 9
        assert memoryview(cast("bytes", owner)).cast("B").tobytes() == bytes(handle) == b"\1\x09\3\4"
        assert bytes(handle.toreadonly()[1:2]) == b"\x09"
        assert hash(handle.toreadonly()) == hash(b"\1\x09\3\4")
        with pytest.raises(TypeError, match=r"a writable Bytes has no hash.*toreadonly"):
            hash(handle)


@in_short(10)
@given(st.integers(0, 20), st.integers(0, 20))
def test_slices_share_memory(start: int, stop: int) -> None:
    """A slice, the memoryviews and the arrays over it are the same memory as the whole."""
    owner = bytearray(16)
    part = Bytes(owner)[start:stop][1:]
    memoryview(part)[:] = b"\7" * len(part)
    assert owner == bytes(7 if start + 1 <= position < stop else 0 for position in range(16))


def test_torch_tensors_are_shared() -> None:
    """A uint8 tensor on the CPU, in shared memory or not, is the memory of the handle, and torch takes it back."""
    torch = pytest.importorskip("torch")
    for tensor in (torch.arange(6, dtype=torch.uint8), torch.arange(6, dtype=torch.uint8).share_memory_()):
        handle = Bytes(tensor.reshape(2, 3)[1])
        assert handle == b"\3\4\5"
        tensor[4] = 77
        back = torch.frombuffer(handle, dtype=torch.uint8)
        assert (handle[1], back.tolist()) == (77, [3, 77, 5])
        assert back.data_ptr() == tensor.data_ptr() + 3
    for wrong in (torch.zeros(4), torch.zeros(4, 4, dtype=torch.uint8).t()[1:], torch.zeros(4, dtype=torch.uint8)[::2]):
        with pytest.raises(UsageError, match=r"got Tensor\(shape=.*contiguous\(\)"):
            Bytes(wrong)
    with pytest.raises(UsageError, match="device=meta"):
        Bytes(torch.zeros(4, dtype=torch.uint8, device="meta"))


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (5, r"got int\(\)"),
        ("text", r"got str\(\) \(a bytes-like object is required, not 'str'\).*text.encode"),
        (np.zeros(3), r"got ndarray\(shape=\(3,\), dtype=float64.*format 'd'"),
        (np.zeros((4, 4), np.uint8)[:, 1], r"shape=\(4,\), dtype=uint8.*strided.*ascontiguousarray"),
        (np.zeros(4, np.int8), "dtype=int8"),
        (np.zeros(2, "M8[s]"), "dtype=datetime64"),
        (memoryview(bytes(8))[::2], r"got memoryview\(shape=\(4,\)\).*strided"),
        (memoryview(bytes(8)).cast("I"), "format 'I'"),
        (object(), r"got object\(\)"),
    ],
)
def test_other_sources_are_refused(source: object, shown: str) -> None:
    """The error names the sources of Bytes, the given object, and a conversion."""
    with pytest.raises(UsageError, match=r"Bytes must be made from a C-contiguous buffer.*" + shown):
        Bytes(source)


def test_its_text_is_short() -> None:
    """The representation says size, owner and rights, and shows a few bytes of millions."""
    assert repr(Bytes(b"abc")) == str(Bytes(b"abc")) == "<Bytes: 3 bytes of bytes, read-only, b'abc'>"
    assert repr(Bytes(np.zeros(10**7, np.uint8))).startswith("<Bytes: 10000000 bytes of ndarray, writable, b'\\x00")
    assert len(repr(Bytes(bytes(10**7)))) < 200


def test_a_handle_that_was_never_made_is_no_buffer() -> None:
    """Reading an object that `__init__` never saw is an error, not a crash."""
    unmade = Bytes.__new__(Bytes)
    with pytest.raises(BufferError, match="never initialised"):
        memoryview(unmade)

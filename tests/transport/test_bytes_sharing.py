"""Handles share one owner, which goes with the last of them: in copies, pickles, threads and at exit."""

import copy
import functools
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
import pytest

from penstock.transport import Bytes, leased_slots
from tests.transport.owners import Memory, every_owner_goes, living_byte_owners


def place(holder: object) -> int:
    """Return the address of a buffer."""
    return np.frombuffer(cast("bytes", holder), np.uint8).ctypes.data


@pytest.fixture(autouse=True)
def no_owner_stays() -> Iterator[None]:
    """Around each test the number of living owners stays the same."""
    with every_owner_goes():
        yield


def test_the_last_of_many_views_drops_the_owner() -> None:
    """Slices, read-only handles, memoryviews, arrays and handles over those each keep the owner; the last lets go."""
    before, leases = living_byte_owners(), leased_slots()
    memory = Memory()
    handle = Bytes(memory.lease(memory.allocate(64), 3))
    views: list[object] = [handle[2:9], handle[2:][1:], handle.toreadonly(), Bytes(handle), copy.deepcopy(handle)]
    views += [memoryview(handle), np.frombuffer(cast("bytes", handle), np.uint8)[::2], pickle.PickleBuffer(handle)]
    del handle
    assert living_byte_owners() == before + 1
    views.append(Bytes(memoryview(cast("Bytes", views[0]))))  # which owns a view, not the lease
    assert living_byte_owners() == before + 2
    while views:
        assert memory.released() == []
        assert leased_slots() == leases + 1
        del views[0]
    assert memory.released() == [3]
    assert living_byte_owners() == before


def test_a_handle_lets_go_of_its_source() -> None:
    """A bytearray can't be resized while a handle lives, and can when the last one is gone, or can't be made."""
    source = bytearray(8)
    part = Bytes(source)[3:5]
    watched = weakref.ref(part)
    assert watched() is part
    with pytest.raises(BufferError, match="re-sized"):
        source.append(1)
    del part
    assert watched() is None
    source.append(1)
    with pytest.raises(ValueError, match="strided"):
        Bytes(memoryview(source)[::2])
    gc.collect()
    source.append(1)
    assert len(source) == 10


def test_copies_share() -> None:
    """`copy` and `deepcopy` copy no bytes, also inside lists and dataclasses."""

    @dataclass(frozen=True)
    class Image:
        data: Bytes
        label: int = 0

    handle = Bytes(bytearray(b"abc"))
    image = Image(handle)
    copies = [copy.copy(handle), copy.deepcopy([handle])[0], copy.deepcopy(image).data, asdict(image)["data"]]
    copies.append(replace(image, label=1).data)
    assert {place(each) for each in copies} == {place(handle)}
    assert image == Image(Bytes(b"abc"))
    assert repr(image).endswith("Image(data=<Bytes: 3 bytes of bytearray, writable, b'abc'>, label=0)")


@pytest.mark.parametrize("source", [b"", b"abc" * 1000, bytearray(b"abc")])
def test_pickles_hold_the_bytes(source: bytes | bytearray) -> None:
    """Every protocol, in C and in Python, gives back a handle of the same value and rights; a slice takes its part."""
    handle = Bytes(source)
    picklers: list[Callable[[object, int], bytes]] = [pickle.dumps, vars(pickle)["_dumps"]]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for dumps in picklers:
            restored = pickle.loads(dumps([handle, handle[1:3]], protocol))
            assert [type(each) for each in restored] == [Bytes, Bytes]
            assert restored == [handle, handle[1:3]]
            assert [each.readonly for each in restored] == [handle.readonly] * 2
        assert len(pickle.dumps(Bytes(bytes(10**6))[:3], protocol)) < 200


@pytest.mark.parametrize("source", [b"abc" * 1000, bytearray(b"abc")])
def test_pickles_with_buffers_outside_copy_nothing(source: bytes | bytearray) -> None:
    """Out of band, the buffers are the handle's memory, and the restored handle is over them, too."""
    handle = Bytes(source)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps({"image": handle}, 5, buffer_callback=buffers.append)
    assert len(data) < 200
    restored = pickle.loads(data, buffers=buffers)["image"]
    assert type(restored) is Bytes
    assert place(restored) == place(handle) == place(source)
    assert restored.readonly is handle.readonly


def test_it_is_taken_for_bytes() -> None:
    """`isinstance`, `match` and `singledispatch` take a handle for bytes; `type` distinguishes them."""

    @functools.singledispatch
    def chosen(_: object) -> str:
        return "object"

    @chosen.register
    def _(_: bytes) -> str:
        return "bytes"

    handle: object = Bytes(b"abc")
    assert [isinstance(handle, kind) for kind in (bytes, Bytes, bytearray, str)] == [True, True, False, False]
    assert not isinstance(b"abc", cast("type", Bytes))
    assert type(handle) is Bytes
    assert chosen(handle) == "bytes"
    with pytest.raises(AttributeError, match="__class__"):
        setattr(handle, "__class__", Bytes)  # noqa: B010 - what is tried, unseen by the type checkers


def test_threads_may_share_and_drop_at_any_time() -> None:
    """Threads that slice, view and drop handles over one owner leave the count exact, and the source free."""
    source = bytearray(range(256))
    handles = [Bytes(source)]
    started = threading.Barrier(4)
    wrong: list[int] = []

    def share(handle: Bytes) -> None:
        started.wait()
        for start in range(1000):
            part = handle[start % 256 :]
            if memoryview(part)[0] != start % 256 or Bytes(part)[0] != start % 256:
                wrong.append(start)

    threads = [threading.Thread(target=share, args=(handles[0],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    handles.clear()
    for thread in threads:
        thread.join()
    threads.clear()
    assert not wrong
    source.append(0)

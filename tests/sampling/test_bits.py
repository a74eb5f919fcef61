"""Set bits are taken in their order, in little memory."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.sampling import Bits


@st.composite
def masks(draw: st.DrawFn) -> NDArray[np.bool_]:
    """Draw a mask that is sparse or dense, has runs, and ends near the ends of bytes and words."""
    length = draw(st.one_of(st.integers(0, 40), st.integers(505, 520), st.integers(1530, 1540), st.integers(0, 6000)))
    mask = np.zeros(length, np.bool_)
    for start, stop in draw(st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 6000)), max_size=4)):
        mask[start:stop] = True
    flipped = draw(st.lists(st.integers(0, max(length - 1, 0)), max_size=8)) if length else []
    mask[flipped] = ~mask[flipped]
    return mask


@given(masks(), st.integers(0, 2**40))
def test_the_set_bits_are_taken_in_order(mask: NDArray[np.bool_], epoch: int) -> None:
    """All positions give the indices of the true bools, and the epoch is unchanged."""
    bits = Bits.from_mask(mask)
    expected = np.flatnonzero(mask).tolist()
    epochs, keys = bits.block(np.full(len(bits), epoch), np.arange(len(bits)))
    assert len(bits) == len(expected)
    assert keys.tolist() == expected
    assert (epochs == epoch).all()
    assert [bits(epoch, position) for position in range(len(bits))] == [(epoch, key) for key in expected]


def test_many_words() -> None:
    """The directory is right if it is counted in several parts."""
    mask = np.arange(5_000_003) % 1001 == 3
    bits = Bits.from_mask(mask)
    positions = np.arange(len(bits))[::-7].copy()
    assert bits.block(np.zeros_like(positions), positions)[1].tolist() == (positions * 1001 + 3).tolist()


def test_little_memory_is_used() -> None:
    """Counting takes less than a quarter of a bit an element and a few megabytes; nothing is unpacked as a whole."""
    length = 40_000_000
    packed = np.full(length // 8, 0b01010101, np.uint8)
    packed.flags.writeable = False
    tracemalloc.start()
    try:
        bits = Bits(packed, length)
        _, keys = bits.block(np.zeros(4096, np.int64), np.arange(len(bits) - 4096, len(bits)))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert keys[-1] == length - 2
    assert kept < length / 8 / 4
    assert peak < length / 8 / 4 + 4e6


def test_a_file_mapped_for_reading_is_not_copied(tmp_path: Path) -> None:
    """A read-only array is used as it is; a writable one is copied, so that the bits stay the same."""
    np.full(1000, 0xFF, np.uint8).tofile(tmp_path / "bits")
    mapped = np.memmap(tmp_path / "bits", np.uint8, "r")
    assert np.shares_memory(Bits(mapped, 8000).packed, mapped)
    own = np.array(mapped)
    bits = Bits(own, 8000)
    own[:] = 0
    assert len(bits) == 8000
    with pytest.raises(ValueError, match="read-only"):
        bits.packed[0] = 0


def test_it_is_its_bits() -> None:
    """Samplers of equal bits and lengths are equal, pickled ones too; others have another repr."""
    bits = Bits.from_mask([True, False, True])
    others = [Bits.from_mask([True, False, True, False]), Bits.from_mask([True, True, True])]
    twin: Bits = pickle.loads(pickle.dumps(bits))
    assert twin == bits == Bits(np.array([0b101], np.uint8), 3)
    assert not twin.packed.flags.writeable
    assert len({repr(one) for one in [bits, *others]}) == len({bits, twin, *others}) == 3
    assert bits != "bits"

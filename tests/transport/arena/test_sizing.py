"""Decisions about memory, for any sizes: a chosen slot fits, and no more is discarded than needed."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.transport._arena._region_pool import (
    PAGE_BYTES,
    ROOMIEST,
    discarded,
    fitting,
    in_pages,
    need_of,
    new_region,
)

sizes = st.integers(0, 1 << 45)
headrooms = st.floats(0, 8)


@given(sizes, headrooms)
def test_a_need_is_met_by_its_own_slot(size_bytes: int, headroom: float) -> None:
    """A slot made for a lease has room for it and its headroom, in whole pages, and fits the same lease again."""
    need = need_of(size_bytes, headroom)
    assert need.touched_bytes == in_pages(size_bytes)
    assert 0 <= need.touched_bytes - max(size_bytes, 1) < PAGE_BYTES
    assert need.slot_bytes % PAGE_BYTES == 0
    assert need.touched_bytes <= need.slot_bytes <= size_bytes * (1 + headroom) + PAGE_BYTES
    assert fitting([need.slot_bytes], need) == need.slot_bytes


@given(sizes, headrooms, st.sets(st.integers(1, 1 << 34).map(lambda pages: pages * PAGE_BYTES)))
def test_the_smallest_slot_that_fits_is_chosen(size_bytes: int, headroom: float, idle: set[int]) -> None:
    """Of all sizes that are idle it is the smallest that is large enough, unless that is far too large."""
    need = need_of(size_bytes, headroom)
    fit = [size for size in idle if size_bytes <= size <= ROOMIEST * need.slot_bytes]
    assert fitting(sorted(idle), need) == min(fit, default=None)


@given(sizes, headrooms, st.integers(0, 1000), st.integers(1, 1000))
def test_a_new_region_doubles_the_slots(size_bytes: int, headroom: float, alike: int, most: int) -> None:
    """It has as many slots as there are of about that size, at least one and at most the allowed number."""
    planned = new_region(need_of(size_bytes, headroom), alike=alike, most=most)
    assert planned.slots == (1 if alike == 0 else min(alike, most))
    assert planned.slot_bytes == need_of(size_bytes, headroom).slot_bytes


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(-10, 500))
def test_no_more_is_discarded_than_needed(touched: list[int], excess_bytes: int) -> None:
    """The first slots that have memory go, until enough went; if all were too few, none goes."""
    chosen = discarded(list(enumerate(touched)), excess_bytes)
    if chosen is None:
        assert sum(touched) < excess_bytes
        return
    freed = sum(touched[slot] for slot in chosen)
    assert freed >= excess_bytes
    assert chosen == tuple(slot for slot in range(len(touched)) if touched[slot] and slot <= max(chosen, default=-1))
    if chosen:
        assert freed - touched[chosen[-1]] < excess_bytes

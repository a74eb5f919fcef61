"""Repeats of datasets that are read in order: each pass is another epoch of the whole, or there is an error."""

import pytest

import penstock as ps
from penstock.errors import GraphError
from tests.constants import SetConstant
from tests.dataset.functions import noisy, same
from tests.equivalence.definition import epoch_of

IN_ORDER = ps.range(5, seed=8).shuffle().random_map(noisy).filter(bool)
OTHERS = ps.range(10, 13).random_map(noisy)
ENDLESS = IN_ORDER.repeat()

WHOLE: list[ps.Dataset] = [
    *(IN_ORDER.map(same), ps.concatenate([IN_ORDER]), ps.interleave([IN_ORDER]).filter(bool)),
    *(ps.zip([IN_ORDER]).map(same), ps.mix({"only": IN_ORDER}, measure=len)),
    ps.concatenate(OTHERS, OTHERS).filter(bool),
    ps.mix([OTHERS, OTHERS], stop="all").window_shuffle(6),
]
WITHOUT_END: list[ps.Dataset] = [
    *(ENDLESS, ps.concatenate(IN_ORDER, ENDLESS), ps.interleave(IN_ORDER, OTHERS, ENDLESS)),
    *(ps.zip(ENDLESS, ENDLESS), ps.mix([IN_ORDER, OTHERS], stop="never")),
    ps.mix([IN_ORDER, ENDLESS], stop="all"),
]
BY_PARTS: list[ps.Dataset] = [
    *(ps.concatenate(IN_ORDER, OTHERS), ps.interleave(OTHERS, IN_ORDER).batch(2), ps.mix([IN_ORDER, OTHERS])),
    ps.zip(IN_ORDER, OTHERS, unequal="shortest").map(same),
    ps.mix([OTHERS, OTHERS], measure=len),
    ps.interleave([ps.concatenate(OTHERS, IN_ORDER)]),
]


def test_each_pass_is_another_epoch() -> None:
    """A join of one part, and steps above a join with positions, are repeated as a whole."""
    for dataset in WHOLE:
        passes = [list(epoch_of(dataset, epoch)) for epoch in range(6)]
        assert list(epoch_of(dataset.repeat(3), 0)) == [element for each in passes[:3] for element in each]
        assert list(epoch_of(dataset.repeat(3), 1)) == [element for each in passes[3:] for element in each]


def test_a_repeat_of_a_dataset_without_end_changes_nothing() -> None:
    """Its first pass never ends, so a repeat changes nothing, and ranks can share its batches."""
    for dataset in WITHOUT_END:
        expected = list(dataset.limit(40))
        with ps.Loader(dataset.repeat(2).batch(2, merge=list), shard=ps.Shard(0, 2)) as loader:
            assert len(next(iter(loader))) == 1
        assert list(dataset.repeat().limit(40)) == list(dataset.repeat(2).limit(40)) == expected
        assert list(ps.mix([dataset], stop="never").limit(40)) == list(ps.mix([dataset]).limit(40))


def test_parts_that_are_read_in_order_are_not_repeated_one_by_one() -> None:
    """A repeat of the parts would have other elements than one of the whole, so it is refused; a single pass isn't."""
    for dataset in BY_PARTS:
        assert repr(list(dataset.repeat(1))) == repr(list(dataset))
        for times in (2, None):
            with pytest.raises(GraphError, match="would repeat each of them by itself, and not the whole"):
                dataset.repeat(times)
        with pytest.raises(GraphError, match=r"mix\(stop=\"never\"\) over part 'a' would repeat"):
            ps.mix({"a": dataset, "b": OTHERS}, stop="never")


def test_a_repeat_of_a_few_elements_has_2_to_the_31_passes() -> None:
    """More can't be taken, and a loader raises an error at the end of the last pass, where it would end silently."""
    dataset = ps.range(1).repeat()
    with ps.Loader(dataset.batch(2**20, merge=len)) as loader:
        loader.seek(2**11 - 1)
        batches = iter(loader)
        assert next(batches) == 2**20
        with pytest.raises(GraphError, match=r"at most 2\*\*31 passes in an epoch; got a request for the batch after"):
            next(batches)
    with pytest.raises(GraphError, match=r"got take\(2147483649\). Repeat a short dataset twice"):
        dataset.take(2**31 + 1)
    with pytest.raises(GraphError, match=r"got \[:2147483649\]"):
        dataset[: 2**31 + 1]
    with pytest.raises(IndexError, match=r"at most 2\*\*31 passes in an epoch; got \[2147483648\]. Repeat a short"):
        dataset[2**31]
    assert len(dataset.take(2**31)) == 2**31
    assert len(ps.range(1).repeat(2).repeat().take(2**32)) == 2**32


def test_a_repeat_without_end_of_which_nothing_is_left_is_an_error(set_constant: SetConstant) -> None:
    """It names the steps that leave everything out, in each place; what is drawn until it is accepted is found."""
    set_constant("EMPTY_ELEMENTS", 20_000)  # after the warning about waste
    refused = ps.mix([ps.range(10).map(_refuse, on_error="skip"), ps.range(9)], stop="never").batch(9)
    left_out = r"; map\(_refuse, on_error='skip'\) left out 20,000 elements in a row, in passes of 10"
    with ps.Loader(refused, num_workers=2, workers="threads") as loader, pytest.raises(GraphError, match=left_out):
        list(loader)
    high = ps.mix([ps.range(9), ps.range(3)], stop="never").filter(_is_high).batch(9)
    left_out = r"; filter\(_is_high\) left out 20,000 elements in a row, in passes of 24\. Correct"
    with ps.Loader(high) as loader, pytest.warns(match="nearly all"), pytest.raises(GraphError, match=left_out):
        list(loader)
    rare = ps.range(1).repeat().random_map(noisy).filter(lambda element: element[1] > 0.999)
    assert next(epoch_of(rare, 0))[1] > 0.999


def _refuse(number: int) -> int:
    raise ValueError(number)


def _is_high(number: int) -> bool:
    return number > 9


def test_the_error_of_a_repeat_without_end_is_at_one_element() -> None:
    """An element after 99,999 that were left out is delivered, and the next one is not, in blocks of any size."""

    def first_after(count: int) -> int:
        numbers = ps.range(3).repeat().map_with_origin(lambda _, origin: origin.index)
        kept = numbers.filter(lambda number: number == count)
        with ps.Loader(kept.batch(1)) as loader, pytest.warns(match="nearly all"):
            return int(next(iter(loader))[0])

    assert first_after(99_999) == 99_999
    with pytest.raises(GraphError, match="left out 100,000 elements in a row"):
        first_after(100_000)


def test_a_function_that_makes_nothing_in_a_repeat_without_end_is_an_error(set_constant: SetConstant) -> None:
    """A split that makes no element of so many in a row fails at the last one, after what it made before."""
    set_constant("EMPTY_ELEMENTS", 10_000)

    def first_after(count: int) -> int:
        numbers = ps.range(3).repeat().map_with_origin(lambda _, origin: origin.index)
        made = numbers.flat_map(lambda number: [number] if number in {5, count} else [])
        with ps.Loader(made.batch(1)) as loader:
            batches = iter(loader)
            assert next(batches)[0] == 5
            return int(next(batches)[0])

    assert first_after(10_005) == 10_005
    with pytest.raises(GraphError, match=r"; flat_map\(.*\) made nothing of 10,000 elements in a row, in passes of 3"):
        first_after(10_006)


def test_the_definition_of_a_split_that_makes_nothing_is_an_error(set_constant: SetConstant) -> None:
    """The definition raises the same error."""
    set_constant("EMPTY_ELEMENTS", 1_000)
    with pytest.raises(GraphError, match="made nothing of 1,000 elements in a row, in passes of 3"):
        next(epoch_of(ps.range(3).flat_map(_nothing).repeat(), 1))


def test_a_part_that_repeats_itself_is_an_error_if_nothing_is_left_of_it(set_constant: SetConstant) -> None:
    """The passes of a part that already repeats count where `mix(stop="never")` repeats it again."""
    set_constant("EMPTY_ELEMENTS", 1_000)
    endless = ps.range(3).repeat()
    for part in (endless.flat_map(_nothing), endless.map(_refuse, on_error="skip")):
        with (
            ps.Loader(ps.mix([part, ps.range(2)], stop="never")) as loader,
            pytest.raises(GraphError, match=r"1,000 elements in a row, in passes of 3\. Correct"),
        ):
            list(loader)


def _nothing(_: int) -> list[int]:
    return []


def test_the_definition_of_a_repeat_without_end_of_which_nothing_is_left_is_an_error(set_constant: SetConstant) -> None:
    """The definition raises the same error."""
    set_constant("EMPTY_ELEMENTS", 1_000)
    with pytest.raises(GraphError, match="left out 1,000 elements in a row, in passes of 3"):
        next(epoch_of(ps.range(3).filter(_is_high).repeat(), 1))


def test_parts_without_end_have_equal_lengths() -> None:
    """Zip takes datasets without end together, and names them without a number beside one that has an end."""
    endless, other = ps.range(2).repeat(), ps.range(3).repeat()
    assert list(ps.zip(endless, other).take(4)) == [(0, 0), (1, 1), (0, 2), (1, 0)]
    with pytest.raises(GraphError, match=r"got \{'0': 3, '1': 'without end'\}"):
        ps.zip(ps.range(3), endless)


def test_a_mixture_without_end_reads_all_of_its_parts() -> None:
    """A part with several parts of its own that have positions is repeated as a whole."""
    parts = {"x": ps.concatenate(ps.range(3), ps.range(10, 12)).filter(lambda _: True), "y": ps.range(100, 102)}
    found = [number for number in ps.mix(parts, stop="never").limit(20) if number < 100]
    assert found == [0, 1, 2, 10, 11] * 2

"""Elements that filters leave out are counted, and a filter that leaves out nearly all is reported."""

import pytest

import penstock as ps
from tests.constants import SetConstant
from tests.dataset.filters.test_index import Multiple
from tests.dataset.functions import is_odd

pytestmark = pytest.mark.each_value


@pytest.mark.parametrize("num_workers", [0, 2])
def test_elements_left_out_are_counted(num_workers: int) -> None:
    """`stats` counts the elements that predicates leave out, at any depth, without skipped errors."""

    def fails_at_sevens(number: int) -> int:
        if number % 7 == 0:
            raise ValueError(number)
        return number

    dataset = ps.range(700).filter(is_odd).map(fails_at_sevens, on_error="skip").batch(10).unbatch().filter(Multiple(3))
    with ps.Loader(dataset, num_workers=num_workers) as loader:
        kept = sum(1 for _ in loader)
        skipped = sum(1 for number in range(700) if number % 2 and number % 7 == 0)
        assert kept == sum(1 for number in range(700) if number % 2 and number % 7 and number % 3 == 0)
        assert (loader.stats()["skipped"], loader.stats()["filtered"]) == (skipped, 700 - kept - skipped)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("where", ["leaf", "fold"])
def test_a_filter_that_leaves_out_nearly_everything_is_warned_of(
    num_workers: int, where: str, set_constant: SetConstant
) -> None:
    """One warning of a loader names the step, the counts and the remedy."""
    set_constant("WASTED_ELEMENTS", 2_000)
    below: ps.Dataset = ps.range(2_500)
    if where == "fold":
        below = below.filter(bool).batch(2).unbatch()
    dataset = below.filter(Multiple(1000), name="thousands").batch(2)
    with ps.Loader(dataset, num_workers=num_workers) as loader:
        with pytest.warns(UserWarning, match=r"'thousands' left out 2,\d{3} of 2.*index=path") as caught:
            first = [batch.tolist() for batch in loader]
        assert len(caught) == 1
        assert [batch.tolist() for batch in loader] == first


@pytest.mark.parametrize(("count", "of"), [(9_000, 1000), (12_000, 50)])
def test_a_filter_that_keeps_enough_is_not_warned_of(count: int, of: int) -> None:
    """There is no warning below ten thousand elements, or where one in a hundred is kept."""
    with ps.Loader(ps.range(count).filter(Multiple(of))) as loader:
        assert sum(1 for _ in loader) == count // of

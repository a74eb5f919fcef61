"""Tests of the other places of a loader hold for a pool of Ray, too.

Left out are those of streams alone, which a pool refuses, and those of functions that can't be sent to other hosts.
"""

import importlib
from collections.abc import Callable, Generator
from types import FunctionType
from typing import Any, Final

import pytest

import penstock as ps
from tests.dataset.functions import keep
from tests.failures import test_writing
from tests.images import test_steps
from tests.loader import test_async, test_elements_apart, test_ending_errors, test_replaced_warnings, test_user_errors
from tests.observe import test_seen
from tests.workers import test_rows_above_folds
from tests.workers.processes import test_collate_jobs

pytest.importorskip("ray")
door: Any = importlib.import_module("penstock.ray")

TESTS: Final[list[Any]] = [
    test_async.test_async_for_delivers_the_same_batches,
    test_collate_jobs.test_a_failing_batch_raises_in_order_and_is_recomputed_from_its_rows,
    test_collate_jobs.test_batches_that_fail_may_be_left_out,
    test_collate_jobs.test_filtered_elements_are_counted_once,
    test_elements_apart.test_batches_of_other_processes_are_apart,
    test_replaced_warnings.test_an_element_that_is_computed_again_counts_once,
    test_replaced_warnings.test_an_epoch_without_elements_is_an_error,
    test_replaced_warnings.test_the_log_counts_lost_elements,
    test_rows_above_folds.test_a_batch_that_is_a_whole_chunk_of_a_pack_has_its_rows,
    test_rows_above_folds.test_a_failing_row_of_a_batch_that_one_worker_makes,
    test_rows_above_folds.test_one_worker_makes_a_batch_of_cheap_rows,
    test_seen.test_a_step_is_shown_with_the_bytes_that_training_logged,
    test_steps.test_every_place_decodes_the_same,
    test_user_errors.test_a_sampler_may_raise,
    test_user_errors.test_rows_that_do_not_stack_name_their_batch,
    test_writing.test_a_row_that_is_chosen_twice_is_not_shared,
    test_writing.test_each_element_is_written_to_once,
]


@pytest.fixture(scope="module")
def place() -> Generator[dict[str, Any]]:
    """The arguments of a loader whose batches a pool computes."""
    with door.Pool(2) as pool:
        yield {"workers": pool}


def _in_a_pool(test: Any) -> Callable[..., None]:
    """Return a test of several places that takes the place of this module, with its other cases."""
    copied = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    copied.__kwdefaults__ = test.__kwdefaults__
    marks: list[pytest.Mark] = [mark for mark in test.pytestmark if mark.args[:1] != ("place",)]
    assert not any("place" in mark.args[0] for mark in marks if mark.args), "it would run in its own places only"
    vars(copied)["pytestmark"] = marks
    return copied


globals().update({test.__name__: _in_a_pool(test) for test in TESTS})


@pytest.mark.parametrize("name", ["map", "source", "predicate, in order"])
def test_stop_iteration_is_an_error_not_an_end(name: str, place: dict[str, Any]) -> None:
    """A StopIteration of user code in the pool becomes a RuntimeError at its batch."""
    test_user_errors.test_stop_iteration_is_an_error_not_an_end(name, place)


@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_an_exception_that_ends_programs_comes_at_its_batch(place: dict[str, Any], kind: str) -> None:
    """SystemExit of a function ends no process of the pool: its batch raises it, and those after it are computed."""
    numbers = ps.range(40).map(test_ending_errors.User(SystemExit))
    with ps.Loader((numbers if kind == "indexed" else numbers.filter(keep)).batch(4), **place) as loader:
        batches = iter(loader)
        step = test_ending_errors.BAD // 4
        assert [int(next(batches)[0]) for _ in range(step)] == [*range(0, 4 * step, 4)]
        with pytest.raises(SystemExit, match="no number"):
            next(batches)
        if kind == "indexed":
            loader.seek(step + 1)
            assert [int(batch[0]) for batch in loader] == [*range(4 * step + 4, 40, 4)]

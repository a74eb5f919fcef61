"""Tests that many mutants have in common, as pytest takes them."""

from typing import Final

GOLDEN: Final = "equivalence/golden/test_golden.py::test_a_dataset_equals_its_record"
STATES: Final = "equivalence/golden/test_golden.py::test_a_recorded_state_gives_the_rest"
RESUMES: Final = "equivalence/golden/test_golden.py::test_states_of_other_ranks_or_batches_give_the_rest"
GOLDEN_THREADS: Final = "equivalence/golden/test_golden.py::test_threads_give_the_recorded_batches"
PAIRS: Final = "equivalence/test_verbs.py::test_all_pairs_equal_the_definition"

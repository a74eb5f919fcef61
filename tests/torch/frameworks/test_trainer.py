"""Hugging Face's Trainer: it makes its loaders itself, and one line in a hook of it has our workers load.

Tried on two ranks, where Transformers is installed; each test looks at some of the runs of one job.
"""

import pytest

from tests.torch.frameworks.parts import EPOCHS, IN_THE_MIDDLE, STEPS
from tests.torch.frameworks.ranks import Report, counted, indices, run_ranks

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """The batches that the two ranks of the job saw."""
    return run_ranks("trainer", tmp_path_factory.mktemp("trainer"))


def test_indices_are_those_of_torchs_loader(reports: list[Report]) -> None:
    """Each rank trains on, and is checked with, what it reads by torch's loader: each index once, on one rank."""
    for rank in reports:
        for part in ("trained", "checked"):
            assert indices(rank["ours"][part]) == indices(rank["torch"][part])
    for epoch in range(EPOCHS):
        assert counted(reports, "ours", "checked", epoch) == list(range(32))
        for run in ("ours", "own"):
            assert counted(reports, run, "trained", epoch) == list(range(32))


def test_our_workers_load(reports: list[Report]) -> None:
    """With the one line in the hooks, our workers load for training and for checks."""
    for rank in reports:
        for run in ("ours", "ours, resumed", "ours, resumed after an epoch"):
            assert rank[run]["engines"] == ["WorkersIterator"]


@pytest.mark.parametrize("name", ["ours", "own"])
def test_resuming_from_the_loaders_state(reports: list[Report], name: str) -> None:
    """With `ignore_data_skip`, a loader that its state was loaded into gives the rows that were left, as they drew."""
    for rank in reports:
        left = rank[name]["trained"][IN_THE_MIDDLE:]
        assert len(left) == STEPS // 2
        assert rank[f"{name}, resumed"]["trained"] == left
        assert rank[f"{name}, resumed"]["steps"] == EPOCHS * STEPS


def test_skipping_first_batches(reports: list[Report]) -> None:
    """The Trainer's own way reads the rows that were left, too; by torch's workers up to the epoch's end."""
    for rank in reports:
        assert indices(rank["ours, skipped"]["trained"]) == indices(rank["ours"]["trained"][STEPS // 2 :])
        assert rank["ours, skipped"]["engines"] == ["WorkersIterator", "_MultiProcessingDataLoaderIter"]
        after = indices(rank["ours, resumed after an epoch"]["trained"])
        assert after == indices(rank["ours"]["trained"][STEPS:])


def test_batches_of_our_loader_are_not_skipped(reports: list[Report]) -> None:
    """The Trainer can't skip batches of a dataset of ours; the error names what does it."""
    for rank in reports:
        assert "resumes inside an epoch by load_state_dict" in rank["own, skipped"]["error"]

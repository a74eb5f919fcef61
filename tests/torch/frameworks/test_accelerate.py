"""Accelerate: what it prepares gives each rank its part, and one line has our workers load it.

Tried on two ranks, where Accelerate is installed; each test looks at some of the runs of one job.
"""

import pytest

from tests.torch.frameworks.parts import EPOCHS, IN_THE_MIDDLE, STEPS
from tests.torch.frameworks.ranks import Report, counted, indices, run_ranks

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """The batches that the two ranks of the job saw."""
    return run_ranks("accelerate", tmp_path_factory.mktemp("accelerate"))


def test_indices_are_those_of_torchs_loader(reports: list[Report]) -> None:
    """Each rank reads what it reads by torch's loader: each index once an epoch, on one rank."""
    for rank in reports:
        assert indices(rank["ours"]["trained"]) == indices(rank["torch"]["trained"])
    for epoch in range(EPOCHS):
        for run in ("ours", "seeded", "stream", "own"):
            assert counted(reports, run, "trained", epoch) == list(range(32))


def test_our_workers_load(reports: list[Report]) -> None:
    """The one line has our workers load, of a prepared loader and of one that skips its first batches."""
    for rank in reports:
        for run in ("ours", "ours, resumed", "seeded", "seeded, resumed", "seeded, skipped"):
            assert rank[run]["engines"] == ["WorkersIterator"]
        assert rank["stream"]["engines"] == ["StreamsIterator"]


@pytest.mark.parametrize("name", ["ours", "seeded", "own"])
def test_resuming_inside_an_epoch(reports: list[Report], name: str) -> None:
    """From a checkpoint of Accelerate's, each rank delivers the remaining rows, with the same random numbers."""
    for rank in reports:
        left = rank[name]["trained"][IN_THE_MIDDLE:]
        assert len(left) == STEPS // 2
        assert rank[f"{name}, resumed"]["trained"] == left


def test_skipping_first_batches(reports: list[Report]) -> None:
    """Accelerate's own way of going on reads the rows that were left."""
    for rank in reports:
        assert indices(rank["seeded, skipped"]["trained"]) == indices(rank["seeded"]["trained"][IN_THE_MIDDLE:])


def test_a_loader_that_cannot_be_replaced_is_refused(reports: list[Report]) -> None:
    """If rank 0 reads for all ranks, the error gives a remedy."""
    for rank in reports:
        assert "DataLoaderDispatcher" in rank["refused"]["trained"]
        assert "dispatch_batches=False" in rank["refused"]["trained"]


def test_parts_are_taken_once(reports: list[Report]) -> None:
    """A loader with a sampler for ranks, which Accelerate deals to ranks again, is refused."""
    for rank in reports:
        assert "BatchSamplerShard and DistributedSampler" in rank["dealt twice"]["trained"]


def test_a_loader_of_ours_that_is_made_torchs_warns(reports: list[Report]) -> None:
    """Accelerate makes torch's own loader of ours; the warning gives the line that helps."""
    for rank in reports:
        (warning,) = rank["warned"]["trained"]
        assert "loader = penstock.torch.DataLoader.in_place_of(loader)" in warning
        assert rank["warned"]["engines"] == ["_MultiProcessingDataLoaderIter"]

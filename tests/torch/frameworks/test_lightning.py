"""Lightning: its trainer makes new loaders of ours for its ranks, and its checkpoints hold their positions.

Tried on two ranks, where Lightning is installed; each test looks at some of the runs of one job.
"""

from typing import Any

import pytest

from tests.torch.frameworks.parts import EPOCHS, IN_THE_MIDDLE, STEPS
from tests.torch.frameworks.ranks import Report, counted, indices, run_ranks

pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """The batches that the two ranks of the job saw."""
    return run_ranks("lightning", tmp_path_factory.mktemp("lightning"))


def test_indices_are_those_of_torchs_loader(reports: list[Report]) -> None:
    """Each rank trains on, and is checked with, what it reads by torch's loader: each index once, on one rank."""
    for rank in reports:
        for part in ("trained", "sanity", "checked"):
            assert indices(rank["ours"][part]) == indices(rank["torch"][part])
    for epoch in range(EPOCHS):
        for part in ("trained", "checked"):
            assert counted(reports, "ours", part, epoch) == list(range(32))


def test_our_workers_load(reports: list[Report]) -> None:
    """The loader is made again as one of ours, with its arguments, whether it came from a hook or was passed."""
    for rank in reports:
        assert rank["ours"]["loader"] == rank["passed"]["loader"] == "penstock DataLoader"
        assert rank["ours"]["engines"] == rank["passed"]["engines"] == ["WorkersIterator"]
        assert (rank["passed"]["num_batch_workers"], rank["passed"]["prefetch_factor"]) == (1, 3)
        assert rank["passed"]["trained"] == rank["ours"]["trained"]


@pytest.mark.parametrize("name", ["ours", "weighted", "own"])
def test_resuming_inside_an_epoch(reports: list[Report], name: str) -> None:
    """Each rank delivers the remaining rows of a checkpoint's epoch; with workers, with the same random numbers."""
    for rank in reports:
        resumed, left = rank[f"{name}, resumed"]["trained"], rank[name]["trained"][IN_THE_MIDDLE:]
        assert indices(resumed) == indices(left)
        assert len(left) == STEPS // 2
        assert resumed == left or name == "weighted"  # whose elements draw from the trainer's generator


def test_ranks_draw_differently(reports: list[Report]) -> None:
    """Ranks draw different random numbers in our workers, although all have the same seed."""
    first, second = (rank["ours"]["trained"][0]["drawn"] for rank in reports)
    assert not set(first) & set(second)


def test_resuming_after_an_epoch(reports: list[Report]) -> None:
    """From a checkpoint at an epoch's end comes the next."""
    for rank in reports:
        assert indices(rank["ours, resumed after an epoch"]["trained"]) == indices(rank["ours"]["trained"][STEPS:])


def test_a_stream_without_a_state_is_trained_on(reports: list[Report]) -> None:
    """A checkpoint is saved and loaded with a warning if a stream has no state."""
    for rank in reports:
        assert indices(rank["stream"]["trained"]) == 2 * indices(rank["stream"]["trained"][:STEPS])
        assert rank["stream"]["engines"] == ["StreamsIterator"]
        assert warned(rank["stream"], "Streamed has no state_dict", "restarts the epoch")
        assert indices(rank["stream, resumed"]["trained"][:1]) == indices(rank["stream"]["trained"][:1])
        assert warned(rank["stream, resumed"], "Streamed has no state_dict", "in which this was saved restarts")
    assert counted(reports, "stream", "trained", 0) == list(range(32))


def test_a_loader_of_our_datasets_takes_its_own_part(reports: list[Report]) -> None:
    """Lightning leaves it alone, so each element comes once, to one rank."""
    for epoch in range(EPOCHS):
        assert counted(reports, "own", "trained", epoch) == counted(reports, "own", "checked", epoch) == list(range(32))


def warned(run: dict[str, Any], *words: str) -> bool:
    """Return whether a run warned of something in these words."""
    return any(all(word in each for word in words) for each in run["warnings"])

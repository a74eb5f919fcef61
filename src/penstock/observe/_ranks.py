"""The reports of all ranks of a training: the rank that waits most holds all of them up."""

from collections.abc import Sequence

from penstock.errors import UsageError
from penstock.observe._report import Report, milliseconds


class RankReports:
    """The reports of all ranks, gathered to each of them; `print` it.

    Ranks wait for each other in every step, so the one that waits longest for its batches sets the pace. The others
    spend that time in the exchange of gradients. `penstock.torch.rank_reports` gathers reports by torch.distributed;
    elsewhere, make one of reports that were sent in any way, since a report can be pickled.

    Attributes:
        reports: the report of each rank, in the order of the ranks.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
        >>> batches = list(loader)
        >>> ranks = ps.observe.RankReports([loader.report(), loader.report()])
        >>> ranks.slowest, str(ranks).startswith("of 2 ranks, rank 0 waits most: ")
        (0, True)
    """

    def __init__(self, reports: Sequence[Report]) -> None:
        """Take the reports.

        Raises:
            UsageError: there is none.
        """
        if not reports:
            raise UsageError("RankReports needs the report of each rank, in the order of the ranks; got none")
        self.reports: tuple[Report, ...] = tuple(reports)

    @property
    def slowest(self) -> int:
        """The rank that waits longest for a batch; the first of several."""
        waits = [_wait_seconds(report) for report in self.reports]
        return waits.index(max(waits))

    @property
    def report(self) -> Report:
        """The report of the slowest rank."""
        return self.reports[self.slowest]

    def numbers(self) -> dict[str, float]:
        """Return `Report.numbers` of the slowest rank, with its number as "data/slowest_rank"."""
        return {**self.report.numbers(), "data/slowest_rank": float(self.slowest)}

    def __str__(self) -> str:
        slowest, report = self.slowest, self.report
        waits = f"{milliseconds(_wait_seconds(report))} ms a batch, {report.wait_share:.0%} of the time"
        others = [each.wait_share for rank, each in enumerate(self.reports) if rank != slowest]
        beside = f"; the others {min(others):.0%} to {max(others):.0%}" if others else ""
        title = f"of {len(self.reports)} ranks, rank {slowest} waits most: {waits}{beside}"
        return f"{title}\n{report}"

    def __repr__(self) -> str:
        return str(self)


def _wait_seconds(report: Report) -> float:
    return report.wait_seconds / max(report.batches, 1)

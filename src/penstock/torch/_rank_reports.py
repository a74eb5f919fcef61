"""The reports of all ranks of a torch job."""

from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import UsageError
from penstock.observe import RankReports, Report

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from penstock._loader import Loader


def rank_reports(loader: "Loader[Any]", group: "ProcessGroup | None" = None) -> RankReports:
    """Return the reports of all ranks, with the rank that waits most; every rank calls it at the same time.

    A report has some hundred numbers, so this takes as long as one small exchange.

    Args:
        loader: the loader of this rank, of any kind.
        group: the process group of torch.distributed; None for that of all processes.

    Raises:
        UsageError: torch.distributed isn't initialised.

    Example:
        >>> import penstock as ps
        >>> import penstock.torch
        >>> penstock.torch.rank_reports(ps.Loader(ps.range(8).batch(2)))
        Traceback (most recent call last):
            ...
        penstock.errors.UsageError: rank_reports needs the ranks of torch.distributed...
    """
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError(
            "rank_reports needs the ranks of torch.distributed, which isn't initialised. Call "
            "torch.distributed.init_process_group() before, or loader.report() for this process alone"
        )
    gathered: list[Report | None] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, loader.report(), group=group)
    return RankReports([report for report in gathered if report is not None])

"""Plans of small datasets."""

from typing import Any, Literal

import penstock as ps
from penstock._plan._lower import lower
from penstock._plan._plan import Limits, Plan


def plan_of(dataset: ps.Dataset[Any], place: Literal["threads", "processes"], num_workers: int) -> Plan:
    """Return the plan of a dataset with one batch ahead."""
    return lower(
        dataset.node,
        place=place,
        num_workers=num_workers,
        shard=None,
        prefetch=1,
        memory=None,
        copy=False,
        limits=Limits(),
    )

"""Where ours computes: in the consumer's own thread, on 2 threads, in 2 processes, or these behind a helper."""

from contextlib import ExitStack
from typing import Any, Literal

import penstock as ps

Place = Literal["inline", "threads", "processes", "isolated"]


def open_loader(scope: ExitStack, dataset: ps.Dataset[Any], place: Place) -> tuple[str, ps.Loader[Any]]:
    """Return the name of a contestant that computes in some place, and its loader, which `scope` closes.

    Args:
        scope: closes the loader.
        dataset: what it loads.
        place: where; 2 workers, but for "inline".
    """
    if place == "inline":
        return "penstock inline", scope.enter_context(ps.Loader(dataset))
    if place == "isolated":
        loader = ps.Loader(dataset, num_workers=2, workers="processes", isolated=True)
        return "penstock, isolated, 2 processes", scope.enter_context(loader)
    return f"penstock, 2 {place}", scope.enter_context(ps.Loader(dataset, num_workers=2, workers=place))

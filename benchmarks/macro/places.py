"""The places in which Penstock's loaders are measured: inline, on 2 threads, in 2 processes, or behind a helper."""

from contextlib import ExitStack
from typing import Any, Literal

import penstock as ps

Place = Literal["inline", "threads", "processes", "isolated"]


def open_loader(
    scope: ExitStack, dataset: ps.Dataset[Any], place: Place, num_workers: int = 2
) -> tuple[str, ps.Loader[Any]]:
    """Return the name of a contestant that computes in a place, and its loader, which `scope` closes.

    Args:
        scope: closes the loader.
        dataset: the dataset to load.
        place: the place.
        num_workers: the number of workers, except for "inline".
    """
    if place == "inline":
        return "penstock inline", scope.enter_context(ps.Loader(dataset))
    if place == "isolated":
        loader = ps.Loader(dataset, num_workers=num_workers, workers="processes", isolated=True)
        return f"penstock, isolated, {num_workers} processes", scope.enter_context(loader)
    loader = ps.Loader(dataset, num_workers=num_workers, workers=place)
    return f"penstock, {num_workers} {place}", scope.enter_context(loader)

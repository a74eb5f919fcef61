"""Renewal in a forked child of locks that another thread held at the fork, and of resources of the parent alone."""

import os
import weakref
from typing import Final, Protocol


class Renewable(Protocol):
    """Something that a forked child can't use as it was."""

    def renew_after_fork(self) -> None:
        """Make it usable again; called in the child, before any other thread runs there."""
        ...


# Keyed by identity: two equal things, such as two caches of one description, must each be renewed.
_living: Final[weakref.WeakValueDictionary[int, Renewable]] = weakref.WeakValueDictionary()


def renewed_after_fork(thing: Renewable) -> None:
    """Call `thing.renew_after_fork` in every forked child, for as long as the thing lives."""
    _living[id(thing)] = thing


def _renew_all() -> None:
    for thing in list(_living.values()):
        thing.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

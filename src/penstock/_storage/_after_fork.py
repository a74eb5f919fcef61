"""What a forked child renews: locks that another thread held at the fork, and whatever belongs to the parent alone."""

import os
import weakref
from typing import Final, Protocol


class Renewable(Protocol):
    """Something that a forked child can't use as it was."""

    def renew_after_fork(self) -> None:
        """Make it usable again; called in the child, before any other thread runs there."""
        ...


# By identity: things that are equal, such as two caches of one description, each have to be renewed.
_living: Final[weakref.WeakValueDictionary[int, Renewable]] = weakref.WeakValueDictionary()


def renewed_after_fork(thing: Renewable) -> None:
    """Have `renew_after_fork` called in every forked child, for as long as the thing lives."""
    _living[id(thing)] = thing


def _renew_all() -> None:
    for thing in list(_living.values()):
        thing.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

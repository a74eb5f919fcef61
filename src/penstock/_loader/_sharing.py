"""The workers of a loader, as another loader that they compute for too knows them."""

from typing import NamedTuple

from penstock._os import Closer
from penstock._plan._plan import Plan
from penstock._runtime._runtime import Runtime
from penstock.errors import ClosedError


class SharedWorkers(NamedTuple):
    """Workers that belong to one loader. Whoever holds this keeps them, though that loader be dropped."""

    plan: Plan
    """The plan of the loader that has them."""
    runtime: Runtime
    closer: Closer
    """What stops them."""

    def need_open(self) -> None:
        """Check that they work.

        Raises:
            ClosedError: the loader that has them was closed.
        """
        if not self.closer.is_open:
            raise ClosedError("the loader that owns the workers of this one was closed; close it last")

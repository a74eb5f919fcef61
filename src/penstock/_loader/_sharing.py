"""The workers of a loader, shared with other loaders."""

from typing import NamedTuple

from penstock._os import Closer
from penstock._plan._plan import Plan
from penstock._runtime._runtime import Runtime
from penstock.errors import ClosedError


class SharedWorkers(NamedTuple):
    """Workers that one loader owns. They run as long as a loader holds this object, also if the owner was dropped."""

    plan: Plan
    """The plan of the owner."""
    runtime: Runtime
    closer: Closer
    """Stops the workers."""

    def need_open(self) -> None:
        """Check that the workers run.

        Raises:
            ClosedError: the owner was closed.
        """
        if not self.closer.is_open:
            raise ClosedError("the loader that owns the workers of this one was closed; close it last")

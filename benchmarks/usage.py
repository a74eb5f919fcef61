"""The cost of a run to this process besides its time: seconds of all its cores, and pages that were mapped."""

import resource
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that all threads of this process used.

    Attributes:
        cpu_seconds: time on a core, in user code and in the kernel.
        minor_faults: pages that were mapped, or zeroed and mapped, when they were first touched.
    """

    cpu_seconds: float
    minor_faults: int


def usage(run: Callable[[], object]) -> Usage:
    """Call `run`, and return the resources that this process used meanwhile."""
    before = used()
    run()
    return since(before)


def used() -> Usage:
    """Return the resources that this process has used since its start."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(counted.ru_utime + counted.ru_stime, counted.ru_minflt)


def since(before: Usage) -> Usage:
    """Return the resources that this process has used since `used` returned `before`."""
    now = used()
    return Usage(now.cpu_seconds - before.cpu_seconds, now.minor_faults - before.minor_faults)

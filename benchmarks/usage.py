"""What a run costs this process, beyond its time: seconds of all its cores, and pages that had to be mapped."""

import resource
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What this process used, all its threads together.

    Attributes:
        cpu_seconds: time on a core, in user code and in the kernel.
        minor_faults: pages that were mapped, or zeroed and mapped, when they were first touched.
    """

    cpu_seconds: float
    minor_faults: int


def usage(run: Callable[[], object]) -> Usage:
    """Call `run` and return what this process used meanwhile."""
    before = used()
    run()
    return since(before)


def used() -> Usage:
    """Return what this process has used since it began."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(counted.ru_utime + counted.ru_stime, counted.ru_minflt)


def since(before: Usage) -> Usage:
    """Return what this process has used since `used` gave `before`."""
    now = used()
    return Usage(now.cpu_seconds - before.cpu_seconds, now.minor_faults - before.minor_faults)

"""The beginning of each process of these tests, which imports little: servers and programs import it, too."""

from penstock._processes import ChildProcess as ChildProcess
from penstock._processes import GlobalSeeds
from penstock._processes._begin import begin_process
from penstock._processes._child import open_spare as open_spare

SEEDS = GlobalSeeds(1, 2, 3)


def begin() -> None:
    """Do what each process does before its own work."""
    begin_process(SEEDS)

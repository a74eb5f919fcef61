"""The table of mutants, one module for each part of the package.

To add one: a realistic fault in code whose text is short and occurs once in its file, and the tests that must notice
it, of a few seconds together. The text is the code that matters, without comments, so that it survives a rewording
around it. Where no test notices, write one.
"""

from typing import Final

from tests.mutants.planting import Mutant, mutants_of
from tests.mutants.table.batches import BATCHES
from tests.mutants.table.graph import GRAPH
from tests.mutants.table.in_order import IN_ORDER
from tests.mutants.table.loader import LOADER
from tests.mutants.table.processes import PROCESSES
from tests.mutants.table.scheduler import SCHEDULER
from tests.mutants.table.transport import TRANSPORT

MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    mutant
    for table in (GRAPH, IN_ORDER, BATCHES, SCHEDULER, PROCESSES, LOADER, TRANSPORT)
    for mutant in mutants_of(table)
)
"""All of them."""

"""Reports of running loaders: where the time of a batch goes, what the training waits for, what the model sees.

`Loader.report()` makes a `Report` at any time, also of a run for which none was planned, since a loader always takes
the few times that a report needs. `Loader.look(step)` shows the batch of any step, with the record of each row, and
`Loader.watch()` a line about the last seconds, live.
"""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock.observe._report import Report, StepReport
from penstock.observe._verdict import WhatIf

if TYPE_CHECKING:
    from penstock.observe._look import Look
    from penstock.observe._prometheus import prometheus
    from penstock.observe._ranks import RankReports
    from penstock.observe._trace import write_trace as write_trace
    from penstock.observe._watch import Watch
else:
    __getattr__ = _lazy.from_modules(
        __name__,
        Look="penstock.observe._look",
        prometheus="penstock.observe._prometheus",
        RankReports="penstock.observe._ranks",
        write_trace="penstock.observe._trace",
        Watch="penstock.observe._watch",
    )
    __dir__ = _lazy.listing(__name__)

__all__ = ["Look", "RankReports", "Report", "StepReport", "Watch", "WhatIf", "prometheus"]

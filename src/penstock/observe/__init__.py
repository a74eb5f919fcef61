"""Reports of running loaders: where the time of a batch goes, what the training waits for, what the model sees.

`Loader.report()` makes a `Report` at any time, also of a run for which none was planned, since a loader always takes
the few times that a report needs. `Loader.look(step)` shows the batch of any step, with the record of each row, and
`Loader.watch()` a line about the last seconds, live.
"""

from penstock.observe._look import Look
from penstock.observe._prometheus import prometheus
from penstock.observe._report import Report, StepReport
from penstock.observe._verdict import WhatIf
from penstock.observe._watch import Watch

__all__ = ["Look", "Report", "StepReport", "Watch", "WhatIf", "prometheus"]

"""Reports of running loaders: where the time of a batch goes, what the training waits for, and what would help.

`Loader.report()` makes a `Report` at any time, also of a run for which none was planned, since a loader always takes
the few times that a report needs.
"""

from penstock.observe._report import Report, StepReport
from penstock.observe._verdict import WhatIf
from penstock.observe._watch import Watch

__all__ = ["Report", "StepReport", "Watch", "WhatIf"]

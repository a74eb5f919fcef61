"""The policy of loaders: sizes and times that trade one thing for another, each with its reason.

No byte of a batch depends on a number here.
"""

from typing import Final

REMEMBERED_STEPS: Final = 256  # for `state_dict(step=…)` and `seek`, where steps come out of order or have tokens
REMEMBERED_LOADERS: Final = 256  # lines of the program that made loaders: they are kept for one warning
HEAD_START_SECONDS: Final = 0.0003  # of the consumer before a turn: to drop a batch and dispatch a step takes as long
MAX_PAUSE_BATCHES: Final = 15  # without a turn that doesn't help: waking a thread costs a tenth of placing a batch
LOOKED_AT_SECONDS: Final = 10.0  # waits of a loader without workers, before its report is made for a hint: it takes ms
SLOW_SECONDS: Final = 10.0  # a batch that is named as slow where it is computed in the training's thread: workers help
MOSTLY_SHARE: Final = 0.5  # of the time, from which the training mostly waits, and a hint is logged

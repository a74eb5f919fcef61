"""The number of examples that tests try: few at every change, many in a soak (`HYPOTHESIS_PROFILE=soak`)."""

import os
from typing import Final

from hypothesis import settings

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "ci")
IS_LONG: Final = PROFILE != "ci"


def fewer() -> settings:
    """Return the settings of a property whose examples take long: a third of them."""
    return settings(max_examples=max(settings().max_examples // 3, 1))


def in_short(examples: int) -> settings:
    """Return the settings of a property that tries so many examples in the short profile, and all in the long one."""
    return settings(max_examples=settings().max_examples if IS_LONG else examples)

"""The number of examples that tests try: few at every change, many in a soak (`HYPOTHESIS_PROFILE=soak`)."""

import os
from typing import Final

from hypothesis import settings

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "ci")
IS_LONG: Final = PROFILE != "ci"


def fewer() -> settings:
    """Return the settings of a property whose examples take long: a third of them."""
    return settings(max_examples=max(settings().max_examples // 3, 1))

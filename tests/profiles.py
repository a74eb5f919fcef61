"""How much the tests try: the short profile at every change, the long one (`HYPOTHESIS_PROFILE=soak`) at times."""

import os
from typing import Final

from hypothesis import settings

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "ci")
IS_LONG: Final = PROFILE != "ci"


def fewer() -> settings:
    """Return the settings of a property whose examples take long: a third of them."""
    return settings(max_examples=max(settings().max_examples // 3, 1))

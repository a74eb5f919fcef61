"""What holds for every test: nothing leaks, and properties are tried as the profile says.

`HYPOTHESIS_PROFILE=soak` tries each property on 2,000 examples instead of the same 30 at every run.
"""

import os
import signal

from hypothesis import HealthCheck, Phase, settings

from tests.leaks import nothing_leaks as nothing_leaks
from tests.leaks import pytest_runtest_makereport as pytest_runtest_makereport
from tests.leaks import settled_module as settled_module
from tests.leaks import settled_process as settled_process

# Whoever runs the tests in the background may have left SIGINT ignored, which every child would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "ci",
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

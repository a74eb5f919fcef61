"""What `import penstock` costs a fresh interpreter, beyond NumPy, which it needs anyway."""

import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.bench import Bench
from benchmarks.scenario import Contestant, Goal, Measurement, Role, Scenario, Unit

UNIT = Unit("s", lambda measured: measured.seconds / measured.amount, more_is_better=False)
NUMPY = "import numpy"


def build(bench: Bench) -> Scenario:
    """Return the scenario: NumPy, ours with the goal beyond it, and rivals, each in fresh interpreters."""
    contestants = (
        importing(NUMPY, "limit"),
        importing("import penstock", "ours", Goal("difference", 0.05)),
        *bench.rivals("import", None),
    )
    return Scenario("import", "wall time of a fresh interpreter that imports it", contestants, rounds=15)


def importing(statement: str, role: Role, goal: Goal | None = None) -> Contestant:
    """Return a contestant that runs a statement in a fresh interpreter once for each repeat."""

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            _python(statement)
        return Measurement(repeats, time.perf_counter() - started)

    def facts() -> Mapping[str, float]:
        return {"modules": int(_python(f"{statement}; import sys; sys.stdout.write(str(len(sys.modules)))"))}

    against = () if statement == NUMPY else (NUMPY,)
    return Contestant(statement, role, run, UNIT, against=against, goal=goal, facts=facts)


def _python(code: str) -> str:
    """Run code in a fresh interpreter that sees the same packages, without this folder, and return what it prints."""
    return subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout

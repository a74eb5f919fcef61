"""What `import penstock` costs a fresh interpreter, beyond NumPy, which it needs anyway.

Compiled modules are kept in a folder of the benchmark's, since an installed package has them, whatever the environment
says about writing them here; the first import, which isn't measured, makes them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.scenario import Contestant, Goal, Measurement, Role, Scenario, Unit

UNIT = Unit("s", lambda measured: measured.seconds / measured.amount, more_is_better=False)
NUMPY = "import numpy"


@dataclass(frozen=True, slots=True)
class Work:
    """Where compiled modules are kept."""

    compiled: Path


def build(bench: Bench) -> Scenario:
    """Return the scenario: NumPy, ours with the goal beyond it, and rivals, each in fresh interpreters."""
    work = Work(bench.directory / "compiled")
    contestants = (
        importing(work, NUMPY, "limit"),
        importing(work, "import penstock", "ours", Goal("difference", 0.05)),
        importing(work, "from penstock import Loader", "ours"),
        *bench.rivals("import", work),
    )
    return Scenario("import", "wall time of a fresh interpreter that imports it", contestants, rounds=15)


def importing(work: Work, statement: str, role: Role, goal: Goal | None = None) -> Contestant:
    """Return a contestant that runs a statement in a fresh interpreter once for each repeat."""

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            _python(work, statement)
        return Measurement(repeats, time.perf_counter() - started)

    def facts() -> Mapping[str, float]:
        return {"modules": int(_python(work, f"{statement}; import sys; sys.stdout.write(str(len(sys.modules)))"))}

    against = () if statement == NUMPY else (NUMPY,)
    return Contestant(statement, role, run, UNIT, against=against, goal=goal, facts=facts)


def _python(work: Work, code: str) -> str:
    """Run code in a fresh interpreter that sees the same packages, without this folder, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(work.compiled)
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

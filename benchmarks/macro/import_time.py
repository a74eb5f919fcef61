"""The cost of `import penstock` in a new interpreter beyond NumPy, which Penstock needs anyway.

Compiled modules are kept in a folder of the benchmark, whatever the environment says about bytecode, since an installed
package has them. The first import, which isn't measured, writes them.
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
    """The folder of the compiled modules."""

    compiled: Path


def build(bench: Bench) -> Scenario:
    """Return the scenario: NumPy, Penstock with a goal beyond it, and rivals, each in new interpreters."""
    work = Work(bench.directory / "compiled")
    contestants = (
        importing(work, NUMPY, "limit"),
        importing(work, "import penstock", "ours", Goal("difference", 0.05)),
        importing(work, "from penstock import Loader", "ours"),
        *bench.rivals("import", work),
    )
    return Scenario("import", "wall time of a new interpreter that imports it", contestants, rounds=15)


def importing(work: Work, statement: str, role: Role, goal: Goal | None = None) -> Contestant:
    """Return a contestant that runs a statement in a new interpreter once for each repeat."""

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
    """Run code in a new interpreter with the same packages, without this folder, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(work.compiled)
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

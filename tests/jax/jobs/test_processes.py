"""Jobs of several processes on one global batch, whose bytes are those of a single process."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.profiles import IS_LONG
from tests.programs.together import free_port, run_together

job = pytest.importorskip("tests.jax.jobs.job")
JOB = Path(__file__).with_name("job.py")
PATIENCE_SECONDS = 300.0


def run(folder: Path, processes: int, steps: int, state: Path | None = None) -> list[Any]:
    """Run a job, and return each step's global batch, joined from the processes' rows."""
    folder.mkdir()
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    warned, rest = ["-W", "error::UserWarning:penstock", str(JOB)], [] if state is None else [str(state)]
    port = free_port()
    run_together(
        [
            ([*warned, *map(str, (process, processes, port, folder, steps)), *rest], environment)
            for process in range(processes)
        ],
        PATIENCE_SECONDS,
    )
    seen = [dict(np.load(folder / f"{process}.npz")) for process in range(processes)]
    return [put_together(seen, step) for step in range(steps)]


def put_together(seen: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """Return the global batch of a step."""
    parts: dict[str, dict[int, Any]] = {}
    for process in seen:
        for name, rows in process.items():
            if name.split()[0] == str(step):
                _, leaf, start = name.split()
                parts.setdefault(leaf, {})[int(start)] = rows
    return {leaf: np.concatenate([found[start] for start in sorted(found)]) for leaf, found in parts.items()}


def same(found: list[Any], batches: list[Any]) -> bool:
    """Return whether global batches hold the bytes of these."""
    return len(found) == len(batches) and all(
        one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in other)
        for one, other in zip(found, batches, strict=True)
    )


@pytest.mark.longer
def test_a_job_of_two_sees_what_one_sees(tmp_path: Path) -> None:
    """Two processes of four devices each train on the batches of one process, which resumes from either's state."""
    loader = ps.Loader(job.dataset())
    batches = [batch for _ in range(2) for batch in loader]
    assert same(run(tmp_path / "two", 2, 5), batches[:5])
    states = [json.loads((tmp_path / "two" / f"{process}.json").read_text()) for process in range(2)]
    assert {**states[0], "rank": 0} == {**states[1], "rank": 0}
    assert same(run(tmp_path / "one", 1, 6, tmp_path / "two" / "1.json"), batches[5:11])
    if IS_LONG:
        assert same(run(tmp_path / "four", 4, 6, tmp_path / "two" / "0.json"), batches[5:11])

"""`scripts/bench ray` compares a pool with bare actors and Ray Data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_comparison_runs(tmp_path: Path) -> None:
    """In smoke mode all ways yield the same batches, and nothing is spilled."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks", "ray", "--smoke", "--json", str(report)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (measured,) = json.loads(report.read_text())
    digests: dict[str, set[str]] = {}
    for contestant in measured["contestants"]:
        if contestant["digest"] is not None:
            digests.setdefault(contestant["name"].partition(":")[0], set()).add(contestant["digest"])
        if "spilled" in contestant["name"]:
            assert contestant["median"]["median"] == 0
    assert [len(found) for found in digests.values()] == [1, 1]

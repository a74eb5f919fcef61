"""`penstock demo --ray`: real schedulers, object stores and processes on three hosts, a real SIGKILL and SIGSTOP."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_makes_its_claims_true(tmp_path: Path) -> None:
    """While a host is killed and another one stopped, all batches are those of a loader without workers."""
    pytest.importorskip("sklearn")
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "penstock", "demo", "--ray", "--epochs", "12", "--report", str(report)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    claims = re.findall(r"^  ([✓✗]) (\w+)", ended.stdout, re.MULTILINE)
    assert claims == [("✓", name) for name in ("killed", "stopped", "batches", "state", "elsewhere")], ended.stderr
    assert ended.returncode == 0
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")

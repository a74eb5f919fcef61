"""Every scenario runs on tiny work, and its contestants yield the output that they claim."""

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from benchmarks.macro.scenarios import SCENARIOS
from tests.images.photographs import need_jpeg


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_runs_and_its_outputs_agree(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In smoke mode a scenario prints a table, and writes JSON with the contestants, the machine and the versions.

    Contestants that are compared with a limit produce the same bytes as the limit in this run.
    """
    if name == "decode-images":
        need_jpeg()
    report = tmp_path / "report.json"
    assert main([name, "--smoke", "--json", str(report)]) == 0
    (measured,) = json.loads(report.read_text())
    assert measured["scenario"] == name
    assert {"cpu", "cores", "memory_bytes", "kernel"} <= measured["machine"].keys()
    assert {"python", "numpy"} <= measured["versions"].keys()
    ours = [contestant for contestant in measured["contestants"] if contestant["role"] == "ours"]
    assert ours
    assert all(len(contestant["rounds"]) == 1 for contestant in measured["contestants"])
    printed = capsys.readouterr().out
    assert all(contestant["name"] in printed for contestant in measured["contestants"])
    if name in {"tiny", "tokens"}:
        digests = {contestant["name"]: contestant["digest"] for contestant in measured["contestants"]}
        assert [contestant["digest"] == digests[contestant["limit"]] for contestant in ours] == [True] * 4

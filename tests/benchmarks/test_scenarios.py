"""Every scenario runs on tiny work, and its contestants yield the output that they claim."""

import json
from pathlib import Path

import pytest

from benchmarks.command import main
from benchmarks.macro.scenarios import SCENARIOS
from tests.images.photographs import need_jpeg


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_runs_and_its_outputs_agree(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In smoke mode a scenario prints a table, and writes JSON with the contestants, the machine and the versions."""
    if name == "decode-images":
        need_jpeg()
    report = tmp_path / "report.json"
    assert main([name, "--smoke", "--json", str(report)]) == 0
    (measured,) = json.loads(report.read_text())
    assert measured["scenario"] == name
    assert {"cpu", "cores", "memory_bytes", "kernel"} <= measured["machine"].keys()
    assert {"python", "numpy"} <= measured["versions"].keys()
    assert any(contestant["role"] == "ours" for contestant in measured["contestants"])
    assert all(len(contestant["rounds"]) == 1 for contestant in measured["contestants"])
    printed = capsys.readouterr().out
    assert all(contestant["name"] in printed for contestant in measured["contestants"])


@pytest.mark.parametrize("name", ["tiny", "tokens"])
def test_ours_is_compared_with_a_limit_of_the_same_output(name: str, tmp_path: Path) -> None:
    """Contestants that are compared with a limit produce the same bytes as the limit in this run."""
    report = tmp_path / "report.json"
    main([name, "--smoke", "--json", str(report)])
    (measured,) = json.loads(report.read_text())
    contestants = {contestant["name"]: contestant for contestant in measured["contestants"]}
    ours = [contestant for contestant in contestants.values() if contestant["role"] == "ours"]
    assert len(ours) == 4  # inline, threads, processes, isolated
    for contestant in ours:
        assert contestant["digest"] == contestants[contestant["limit"]]["digest"]

"""Every scenario runs on tiny work, and its contestants yield the output that they claim."""

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.command import main
from benchmarks.macro.scenarios import SCENARIOS
from tests.images.photographs import need_jpeg

EXPENSIVE = {
    *("big-batches", "busy-trainer", "formats", "images", "import", "jax-feed", "kill", "memory", "parquet-lanes"),
    *("readings", "start-stop", "tokens-as-int32", "torch-feed", "transport", "write"),
}
"""Those that start many processes or Pythons, or write many files."""
LONG = pytest.mark.long


@pytest.mark.parametrize("name", [pytest.param(name, marks=[LONG] * (name in EXPENSIVE)) for name in SCENARIOS])
def test_a_scenario_runs_and_its_outputs_agree(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In smoke mode a scenario prints a table, and writes JSON with the contestants, the machine and the versions.

    Contestants that are compared with a limit produce the same bytes as the limit in this run.
    """
    if name == "decode-images":
        need_jpeg()
    if name == "ray" and importlib.util.find_spec("ray") is None:
        assert main([name]) == 0
        assert "Ray is not installed. scripts/test-with ray makes" in capsys.readouterr().out
        return
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


def test_only_some_contestants_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` keeps the contestants with a text in their names, in any case, and those that they are compared with."""
    report = tmp_path / "report.json"
    assert main(["variations", "--smoke", "--only", "TUPLES by 32: penstock in", "--json", str(report)]) == 0
    (measured,) = json.loads(report.read_text())
    names = [contestant["name"] for contestant in measured["contestants"]]
    assert names == ["tuples by 32: loop", "tuples by 32: penstock inline"]
    assert "tuples by 32: penstock inline" in capsys.readouterr().out
    assert main(["variations", "--smoke", "--only", "tuples by 32: loop"]) == 0
    assert "only loops were measured" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"(?s)--only 'nothing': no contestant of variations .*tuples by 32: loop"):
        main(["variations", "--smoke", "--only", "nothing"])


def test_only_contestants_with_goals_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--goals` keeps the contestants that have a goal, and those that they are compared with, by which goals are met.

    A scenario without goals is left out, with a line that says so.
    """
    report = tmp_path / "report.json"
    assert main(["packing", "variations", "--smoke", "--goals", "--json", str(report)]) == 0
    (measured,) = json.loads(report.read_text())
    names = [contestant["name"] for contestant in measured["contestants"]]
    assert "penstock inline, a function above" in names
    assert "first fit by hand, NumPy" not in names
    compared = {contestant["limit"] for contestant in measured["contestants"]} - {None}
    assert compared <= {*names}
    assert "variations: no contestant has a goal" in capsys.readouterr().out

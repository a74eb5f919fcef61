"""A long run resumes from the counts of the parts that ended."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.checkpoints import Counted, load, save
from tests.decisions.comparing import Comparison, compare_until
from tests.promptness import PATIENCE_SECONDS

COUNTS: Counter[tuple[str, ...]] = Counter({("pack", "inline"): 3, ("batch\n", "threads"): 10**12})


def test_counts_are_those_that_were_saved(tmp_path: Path) -> None:
    """The last ones count, whatever a program that was killed has left unfinished; there are none at first."""
    path = tmp_path / "counts.json"
    assert load(path) == load(None) == (0, 0.0, Counter())
    save(path, Counted(1, 0.5, Counter()))
    save(path, Counted(2, 1.5, COUNTS))
    (tmp_path / "counts.unfinished").write_text("{")
    assert load(path) == (2, 1.5, COUNTS)
    save(path, load(path))
    assert [each.name for each in tmp_path.iterdir()] == ["counts.json"]
    save(None, Counted(1, 0.5, COUNTS))


class Runs(Comparison):
    """Counts ten batches for each run, and compares none."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, str, int | None]] = []

    def run(self, name: str, place: str, seed: int | None) -> None:
        """Count."""
        self.order.append((name, place, seed))
        self.counts[name, place] += 10
        self.runs += 1


@pytest.mark.parametrize("stop", range(1, 15))
def test_decisions_resume_after_the_last_run(stop: int) -> None:
    """Each dataset, place and seed has one run, before or after the stop."""
    names, places = ["pack", "batch", "mix"], ["inline", "threads"]
    whole, first, second = Runs(), Runs(), Runs()
    list(compare_until(whole, 150, names, places, 5))
    assert len(set(whole.order)) == 15
    list(compare_until(first, 10 * stop, names, places, 5))
    second.runs, second.counts = first.runs, Counter(first.counts)
    list(compare_until(second, 150, names, places, 5))
    assert first.order + second.order == whole.order
    assert second.counts == whole.counts


@pytest.mark.long
def test_a_killed_program_resumes_after_its_last_round(tmp_path: Path) -> None:
    """After SIGKILL, the rounds that had ended count, and are not run again."""
    path = tmp_path / "counts.json"
    command = [sys.executable, "-m", "tests.faults", "--working", "--checkpoint", str(path), "--seconds"]
    folder = Path(__file__).parents[1]
    with subprocess.Popen([*command, "600"], cwd=folder, stderr=subprocess.PIPE, start_new_session=True) as program:
        assert program.stderr is not None
        while load(path).parts == 0:
            assert program.stderr.readline()
        program.kill()
    before = load(path)
    ended = subprocess.run(
        [*command, "0"], cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert ended.returncode == 0, ended.stderr
    assert f"in {before.parts} rounds," in re.sub(r"\s+", " ", ended.stdout)
    assert load(path) == before

"""A program that compares so many batches with the definition while decisions are random.

    python -m tests.decisions --batches 1000000 [--seed 1] [--place threads] [--dataset "pack, batch"]

The exit status is 1 where a batch differs. With `--checkpoint counts.json` a run that was stopped or killed resumes
after its last dataset, if all batches up to there were right.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from tests.checkpoints import Counted, load, save
from tests.decisions.comparing import PLACES, Comparison, compare_until
from tests.decisions.datasets import DATASETS

_LINE_SECONDS: Final = 15.0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Compare, and print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.decisions", description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000, help="the least number of batches to compare")
    parser.add_argument("--elements", type=int, default=6_000, help="the number of elements in each dataset's source")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first decisions")
    parser.add_argument("--place", choices=[*PLACES], action="append", help="a place; by default all")
    parser.add_argument("--dataset", choices=[*DATASETS], action="append", help="a dataset; by default all")
    parser.add_argument("--checkpoint", type=Path, help="the file of the counts, from which the run resumes")
    options = parser.parse_args()
    comparison = Comparison(options.elements)
    comparison.runs, seconds, comparison.counts = load(options.checkpoint)
    shown = time.monotonic()
    began = shown - seconds
    names, places = options.dataset or [*DATASETS], options.place or [*PLACES]
    for _ in compare_until(comparison, options.batches, names, places, options.seed):
        now = time.monotonic()
        if not comparison.wrong:
            save(options.checkpoint, Counted(comparison.runs, now - began, comparison.counts))
        if now - shown >= _LINE_SECONDS:
            shown = now
            _say(f"{comparison.total:,} batches, {len(comparison.wrong)} wrong, {now - began:.0f} s")
    for wrong in comparison.wrong[:20]:
        _say(str(wrong))
    for name in names:
        for place in places:
            _say(f"{name}, {place}: {comparison.counts[name, place]:,}")
    _say(f"{len(comparison.wrong)} of {comparison.total:,} batches are wrong, {time.monotonic() - began:.0f} s")
    return int(bool(comparison.wrong))


if __name__ == "__main__":
    sys.exit(main())

"""Compares batches with the definition while decisions are random, until there were so many.

    python -m tests.decisions --batches 1000000 [--seed 1] [--place threads] [--dataset "pack, batch"]

The exit status is 1 where a batch differs.
"""

import argparse
import sys
import time
from typing import Final

from tests.decisions.comparing import PLACES, Comparison, compare_until
from tests.decisions.datasets import DATASETS

_LINE_SECONDS: Final = 15.0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Compare, and print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.decisions", description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000, help="how many to compare, at least")
    parser.add_argument("--elements", type=int, default=6_000, help="of the source of each dataset")
    parser.add_argument("--seed", type=int, default=1, help="of the first decisions")
    parser.add_argument("--place", choices=[*PLACES], action="append", help="where; by default everywhere")
    parser.add_argument("--dataset", choices=[*DATASETS], action="append", help="which; by default all")
    asked = parser.parse_args()
    comparison = Comparison(asked.elements)
    began = shown = time.monotonic()
    names, places = asked.dataset or [*DATASETS], asked.place or [*PLACES]
    for _ in compare_until(comparison, asked.batches, names, places, asked.seed):
        now = time.monotonic()
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

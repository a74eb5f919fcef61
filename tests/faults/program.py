"""A program that reads a dataset and is killed, and programs that resume from the state that it printed.

`python -m tests.faults.program` is that program: it prints a line for each batch, its digest and the state after it.
"""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.equivalence.definition import digest
from tests.faults.chance import Chance
from tests.faults.datasets import dataset_of
from tests.faults.findings import BATCHES, Findings, compare
from tests.faults.pace import at_once
from tests.faults.places import KILL_PROGRAM, WHOLE, Place, place_for
from tests.faults.subjects import Subject

_ROOT: Final = Path(__file__).parents[2]
_KILLS: Final = 2


def run_killed(subject: Subject, made: tuple[str, str, int, int], chance: Chance, findings: Findings) -> None:
    """Read an epoch by a sequence of programs that are killed, and a last one that is not.

    A program makes the dataset of the arguments in `made`: its kind, the folder of its traps, the seed and the round.
    """
    kind, *_ = made
    with at_once():
        expected = [_printed(batch) for batch in subject.epoch(0, WHOLE)]
    found: list[str] = []
    state: Any = None
    in_order = True
    for left in reversed(range(_KILLS + 1)):  # the last one is not killed
        place = place_for(KILL_PROGRAM, chance)
        in_order = in_order and place.ordered
        began = time.monotonic()
        beyond = len(expected) - len(found)
        stop = chance.between(1, max(beyond // 2, 1)) if left and beyond > 1 else None
        for line in _lines_of({"made": made, "place": asdict(place), "state": state}, stop):
            found.append(line["batch"])
            state = line["state"]
            findings.counts[kind, place.name, BATCHES] += 1
        findings.took(kind, place.name, time.monotonic() - began)
        if stop is None:
            break
        findings.counts[kind, place.name, KILL_PROGRAM] += 1
    for what, how_many in compare(expected, found, in_order=in_order).items():
        findings.counts[kind, "programs", what] += how_many
        findings.bad.append(f"{kind}, seed {made[2]}, round {made[3]}, by programs: {how_many} {what}")


def _lines_of(task: dict[str, Any], stop: int | None) -> Iterator[dict[str, Any]]:
    """Yield a program's lines; after `stop` of them, kill it, and wait for the end of its child processes."""
    command = [sys.executable, "-m", "tests.faults.program", json.dumps(task)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise AssertionError("stdout is a pipe")
        try:
            for number, line in enumerate(process.stdout, 1):
                yield json.loads(line)
                if number == stop:
                    break
        finally:
            if stop is not None:
                process.kill()
            process.stdout.read()  # it ends when the last child process has closed it
    if process.returncode != (0 if stop is None else -9):
        raise AssertionError(f"the program ended with {process.returncode}")


def _printed(batch: Any) -> str:
    return hashlib.sha256(repr(digest(batch)).encode()).hexdigest()


def main() -> None:
    """Read the rest of an epoch."""
    task = json.loads(sys.argv[1])
    kind, folder, seed, number = task["made"]
    dataset = dataset_of(kind, Path(folder), Chance(seed, number, "dataset"))
    with Place(**task["place"]).open(dataset) as loader:
        if task["state"] is not None:
            loader.load_state_dict(task["state"])
        for batch in loader:
            sys.stdout.write(json.dumps({"batch": _printed(batch), "state": loader.state_dict()}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Workers of the drop-in DataLoader see the globals and classes of the script as the program has set them."""

from pathlib import Path

import pytest

from tests.programs.forked import Ended, script_outcome

pytestmark = pytest.mark.usefixtures("forked_programs")

SCRIPT = """
import argparse
import pickle
import threading
from functools import lru_cache
from typing import NamedTuple

import torch
from penstock.torch import DataLoader

scale = 1
options = {"more": 2}
lock = threading.Lock()


class Rows(NamedTuple):
    numbers: torch.Tensor


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return squared(index) * scale + options["more"] + args.offset


class Locked(Numbers):
    def __getitem__(self, index):
        with lock:
            return scale + isinstance(pickle.loads(pickle.dumps(self)), Locked)


@lru_cache
def squared(number):
    return number * number


def collated(numbers):
    return Rows(torch.tensor(numbers))


def printed(dataset):
    for rows in DataLoader(dataset, 2, num_workers=1, collate_fn=collated):
        print(type(rows) is Rows, rows.numbers.tolist())


def train():
    global scale
    for scale in 20, 30:
        printed(Numbers())


IF
    parser = argparse.ArgumentParser()
    parser.add_argument("--offset", type=int)
    args = parser.parse_args()
    options["more"] = 2.0
    train()
"""
OF_EPOCHS = ["True [7.0, 27.0]", "True [7.0, 37.0]"]
BY_NAME = "    printed(Locked())\n"
BY_VALUE = """
import penstock as ps
import training

made = []


class Base:
    def __init_subclass__(cls):
        made.append(cls)


class Batch(Base):
    seen = 0

    def __init__(self, elements):
        self.elements = elements


class Refused(Exception):
    seen = 0


class Refusing:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise Refused


class Pair(NamedTuple):
    one: object
    other: object


class Pairs:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return Pair(index, [index, -index])


method = Batch.__init__
for _ in DataLoader(range(6), 2, num_workers=1, collate_fn=Batch):
    Batch.seen += 1
with ps.Loader(ps.range(6).map(Batch), num_workers=1, workers="processes") as loader:
    for _ in loader:
        Batch.seen += 1
batches = iter(DataLoader(Refusing(), 1, num_workers=1))
for _ in range(3):
    try:
        next(batches)
    except Refused:
        Refused.seen += 1
print(Batch.seen, Refused.seen, Batch.__init__ is method, made == [Batch])
print([type(batch) is Pair and batch.one.tolist() for batch in DataLoader(Pairs(), 3, num_workers=1)])
"""
TRAINING = """
from penstock.torch import DataLoader


class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


print([batch.tolist() for batch in DataLoader(Numbers(), 2, num_workers=1)])
"""


def ended(script: Path, program: str) -> Ended:
    """Run a script with an argument to its end."""
    script.write_text(program)
    return script_outcome(script, "--offset", "5")


def test_a_guarded_script_keeps_one_class_of_each_name(tmp_path: Path) -> None:
    """Arguments that a guarded statement parses, an equal number of another type, and one for each epoch.

    Workers import the script, with what can't be pickled; items can pickle its objects, and compare their classes.
    """
    found = ended(tmp_path / "script.py", SCRIPT.replace("IF", 'if __name__ == "__main__":') + BY_NAME)
    assert (found.returncode, found.stdout.splitlines()) == (0, [*OF_EPOCHS, "True [31, 31]"]), found.stderr


def test_an_unguarded_script_runs_once(tmp_path: Path) -> None:
    """It has the same globals; classes whose copies workers make stay as they are in the program.

    A module that is being imported loads with workers of torch: these are forks of the program, so they import nothing.
    """
    (tmp_path / "training.py").write_text(TRAINING)
    found = ended(tmp_path / "script.py", SCRIPT.replace("IF", "if True:") + BY_VALUE)
    lines = [*OF_EPOCHS, "[[0, 1], [2, 3]]", "9 3 True True", "[[0, 1, 2]]"]
    assert (found.returncode, found.stdout.splitlines()) == (0, lines), found.stderr
    assert "the module training starts processes while it is imported" in found.stderr

"""Workers of the drop-in DataLoader see the globals of the script as the program has set them when they start."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    for rows in DataLoader(dataset, 2, num_workers=2, collate_fn=collated):
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
BY_NAME = "    printed(Locked())\n"


def output(script: Path, program: str) -> str:
    """Return what a script prints with an argument."""
    script.write_text(program)
    command = [sys.executable, str(script), "--offset", "5"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("condition", ['if __name__ == "__main__":', "if True:"])
def test_workers_have_the_globals_of_the_program(tmp_path: Path, condition: str) -> None:
    """Arguments that a guarded statement parses, an equal number of another type, and one for each epoch."""
    found = output(tmp_path / "script.py", SCRIPT.replace("IF", condition))
    assert found.splitlines() == ["True [7.0, 27.0]", "True [7.0, 37.0]"]


def test_a_guarded_script_keeps_one_class_of_each_name(tmp_path: Path) -> None:
    """Workers import it, with what can't be pickled; items can pickle its objects, and compare their classes."""
    found = output(tmp_path / "script.py", SCRIPT.replace("IF", 'if __name__ == "__main__":') + BY_NAME)
    assert found.splitlines()[2:] == ["True [31, 31]"]

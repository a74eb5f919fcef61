"""Processes are chosen only where starting them runs no script again, and where they get an equal dataset."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import double, is_odd
from tests.programs.forked import script_outcome
from tests.runtime.autotune.choices import obstacle
from tests.runtime.plans import plan_of

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
PATHS = os.pathsep.join([str(Path(ps.__file__).parents[1]), str(Path(__file__).parents[3])])


class Awaited:
    """An async source, defined here alone."""

    def __len__(self) -> int:
        return 4

    async def read(self, keys: Any) -> list[int]:
        """Return the keys."""
        return [int(key) for key in keys]


class Locked:
    """A source that can't be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> int:
        return key


def test_what_can_be_copied_may_be_sent() -> None:
    """A dataset of plain functions can be sent by a program with a guard, such as these tests."""
    assert obstacle(plan_of(ps.range(10).shuffle().map(double).batch(2))) == ""
    assert obstacle(plan_of(ps.range(10).filter(is_odd).batch(2))) == ""


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (lambda: ps.stream([1, 2, 3]).filter(is_odd).batch(2), "in order"),
        (lambda: ps.read(Awaited()).batch(2), "async"),
        (lambda: ps.range(10).map(lambda number: number + 1).batch(2), "can't be pickled"),
        (lambda: ps.read(Locked()).batch(2), "can't be pickled"),
        (lambda: ps.range(10).map(double).cache(size="1 MB").batch(2), "kept in memory"),
        (lambda: ps.read([np.zeros(10_000_000)] * 1 + [np.ones(100)]).batch(1), "64 MB"),
    ],
)
def test_what_would_change_by_it_is_not_sent(dataset: Any, words: str) -> None:
    """The reason names the obstacle."""
    assert words in obstacle(plan_of(dataset()))


PREAMBLE = """
import sys, threading
import penstock as ps
from tests.runtime.autotune.choices import obstacle
from tests.runtime.plans import plan_of

def above(number):
    return number

def tell(function=abs):
    plan = plan_of(ps.range(10).map(function).batch(2))
    sys.modules["cloudpickle"] = None
    print(obstacle(plan) or "sent")
    del sys.modules["cloudpickle"]
    print(obstacle(plan) or "sent")
"""
NOT_GUARDED = "the script has no `if __name__"
SCRIPTS = {
    "guarded": ('if __name__ == "__main__":\n    tell()', "sent"),
    "guarded the other way round": ("if '__main__' == __name__:\n    tell()", "sent"),
    "guarded, in a thread of a function": (
        'def main():\n    threading.Thread(target=tell).start()\nif __name__ == "__main__":\n    main()', "sent"
    ),
    "a function of its own": ('if __name__ == "__main__":\n    tell(above)', "sent"),
    "a function below the guard": (
        'if __name__ == "__main__":\n    def below(number):\n        return number\n    tell(below)',
        "below is defined where processes don't",
    ),
    "not guarded, in a function": ("def main():\n    tell()\nmain()", NOT_GUARDED),
    "not guarded, in a thread": ("thread = threading.Thread(target=tell)\nthread.start()\nthread.join()", NOT_GUARDED),
    "a guard elsewhere": ('tell()\nif __name__ == "__main__":\n    pass', NOT_GUARDED),
    "below else": ('if __name__ == "__main__":\n    pass\nelse:\n    pass\ntell()', NOT_GUARDED),
    "another condition": ('if __name__ != "other":\n    tell()', NOT_GUARDED),
}  # fmt: skip


def run(*arguments: str, text: str = "") -> list[str]:
    """Run a program and return the lines that it printed."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": PATHS},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_would_run_again_starts_no_processes_unasked(tmp_path: Path, name: str) -> None:
    """Processes are safe if the running statement is below the usual guard."""
    text, expected = SCRIPTS[name]
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(text))
    ended = script_outcome(script)
    assert (ended.returncode, ended.stderr) == (0, "")
    without_cloudpickle, with_it = ended.stdout.splitlines()
    assert without_cloudpickle.startswith(expected)
    assert with_it == "sent"  # all that the script defines travels by value


def test_what_has_no_file_is_not_run_again() -> None:
    """Processes import nothing of a program that is an argument of Python, or read from a pipe."""
    assert run("-c", f"{PREAMBLE}\ntell()")[-1] == "sent"
    assert run("-", text=f"{PREAMBLE}\ntell()")[-1] == "sent"

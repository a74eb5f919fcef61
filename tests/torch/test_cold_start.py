"""Making a loader with workers prepares them, so that the program's own set-up hides the import of torch."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, weakref

import penstock as ps

def found(number):
    finalizers = [each for each in weakref.finalize._registry if each.peek()[1].__name__ == "_del_library"]
    return "torch" in sys.modules, len(finalizers) > 10, sum(each.atexit for each in finalizers)

if __name__ == "__main__":
    from penstock.torch import DataLoader
    for num_workers in (0, 1):
        DataLoader(range(4), num_workers=num_workers)
        with ps.Loader(ps.range(4).map(found).batch(4), num_workers=1, workers="processes") as loader:
            print(*[column.tolist() for batch in loader for column in batch])
"""


def test_a_loader_that_is_made_lets_the_server_import_torch(tmp_path: Path) -> None:
    """A process that needs no torch has it if a loader with workers was made, since its server has imported it.

    Such a process doesn't take torch's operators back at its end, as the program does.
    """
    script = tmp_path / "needed.py"
    script.write_text(SCRIPT)
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"{[known] * 4} {[known] * 4} {[0] * 4}" for known in (False, True)]
    assert found.stderr == ""

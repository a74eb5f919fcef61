"""Making a loader with workers prepares them, so that the program's own set-up hides the import of torch."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

import penstock as ps

def has_torch(number):
    return "torch" in sys.modules

if __name__ == "__main__":
    from penstock.torch import DataLoader
    for num_workers in (0, 1):
        DataLoader(range(4), num_workers=num_workers)
        with ps.Loader(ps.range(4).map(has_torch).batch(4), num_workers=1, workers="processes") as loader:
            print([batch.tolist() for batch in loader])
"""


def test_a_loader_that_is_made_lets_the_server_import_torch(tmp_path: Path) -> None:
    """A process that needs no torch has it if a loader with workers was made, since its server has imported it."""
    script = tmp_path / "needed.py"
    script.write_text(SCRIPT)
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [str([[has_torch] * 4]) for has_torch in (False, True)]
    assert found.stderr == ""

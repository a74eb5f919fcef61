"""The import contract is effective: each forbidden import, when planted, breaks it."""

import shutil
import subprocess
from pathlib import Path

from tests.architecture.tree import CHECKOUT

# File, line that is appended to it, the contract that breaks, and what the report names.
PLANTED = (
    ("errors.py", "import penstock._seeds", "Imports point down", "penstock.errors -> penstock._seeds"),
    ("_helpers.py", "", "Imports point down", "- penstock._helpers"),
    ("_seeds.py", "import penstock._native", "Only its wrappers touch the native module", "_seeds -> penstock._native"),
    (
        "_seeds.py",
        "def f():\n    import penstock.pipeline",
        "The core stands without the pipeline",
        "_seeds -> penstock.pipeline",
    ),
    (
        "_streaming/_in_order.py",
        "import penstock._streaming._pack",
        "No module distinguishes folds",
        "_in_order -> penstock._streaming._pack",
    ),
    ("_seeds.py", "def f():\n    import torch", "The core imports no framework", "_seeds -> torch"),
)


def test_planted_imports_break_the_contract(tmp_path: Path) -> None:
    """Each import that a contract forbids, and a module that no layer lists, is reported.

    That the sources keep the contract is a check of its own, `scripts/import-contract`.
    """
    sources = tmp_path / "src"
    shutil.copytree(CHECKOUT / "src", sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name, line, _, _ in PLANTED:
        with (sources / "penstock" / name).open("a") as module:
            module.write(f"\n{line}\n")
    command = [str(CHECKOUT / "scripts" / "import-contract"), str(sources)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 1, result.stdout + result.stderr
    for _, _, contract, reported in PLANTED:
        assert any(contract in row and "BROKEN" in row for row in result.stdout.splitlines()), result.stdout
        assert reported in result.stdout

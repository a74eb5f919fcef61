"""The import contract is effective: each forbidden import, when planted, breaks it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import CHECKOUT

# File, line that is appended to it, and the contract that breaks.
PLANTED = {
    "upwards": ("errors.py", "import penstock._seeds", "Imports point down"),
    "unlisted module": ("_helpers.py", "", "Imports point down"),
    "native": ("_seeds.py", "import penstock._native", "Only its wrappers touch the native module"),
    "pipeline": ("_seeds.py", "def f():\n    import penstock.pipeline", "The core stands without the pipeline"),
    "framework": ("_seeds.py", "def f():\n    import torch", "The core imports no framework"),
}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of the package's sources."""
    shutil.copytree(CHECKOUT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path / "src"


def _check(sources: Path) -> subprocess.CompletedProcess[str]:
    command = [str(CHECKOUT / "scripts" / "import-contract"), str(sources)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_contract_is_kept(sources: Path) -> None:
    """The sources keep every contract."""
    result = _check(sources)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_import_breaks_the_contract(sources: Path, kind: str) -> None:
    """An import that a contract forbids, or a module that no layer lists, is reported."""
    name, line, contract = PLANTED[kind]
    with (sources / "penstock" / name).open("a") as module:
        module.write(f"\n{line}\n")
    result = _check(sources)
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(contract in row and "BROKEN" in row for row in result.stdout.splitlines()), result.stdout

"""The types of the programs on README.md and the pages of docs/, and of the examples, under mypy and basedpyright.

`python -m tests.architecture.page_types` checks them. Each page is one program, as where its blocks run, and mypy is as
strict as for the sources, with the exceptions in pyproject.toml and `PYRIGHT`: functions on pages have no annotations,
names are assigned again with other types, a name that a loop sets is read behind the loop, and modules that a page
writes or compiles aren't there.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.architecture.test_documents import PAGES, program_of
from tests.architecture.tree import CHECKOUT

FOLDER: Final = CHECKOUT / "build" / "pages"
PYRIGHT: Final = {
    "include": [".", "../../examples/*.py"],
    "extraPaths": ["../../src"],
    "venvPath": "../..",
    "venv": ".venv",
    "pythonVersion": "3.11",
    "typeCheckingMode": "standard",
    "reportIncompatibleMethodOverride": False,
    "reportMissingImports": False,  # modules that a page makes, and frameworks that aren't installed
    "reportPossiblyUnboundVariable": False,
}


def write_programs(folder: Path) -> list[str]:
    """Write each page's program into a folder, for the lines that a checker shows; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    written: list[str] = []
    for name, page in PAGES.items():
        program = program_of(page.read_text())
        if program.strip():
            path = folder / (name.removesuffix(".md").replace("/", "_").replace("-", "_") + ".py")
            path.write_text(program + "\n")
            written.append(str(path))
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return written


def main() -> int:
    """Check the programs by both checkers, beside each other; return the exit status."""
    written = write_programs(FOLDER)
    checkers = [
        subprocess.Popen(["mypy", "--no-error-summary", *written], cwd=CHECKOUT),
        subprocess.Popen(["basedpyright", "--project", str(FOLDER)], cwd=CHECKOUT),
    ]
    return max(checker.wait() for checker in checkers)


if __name__ == "__main__":
    sys.exit(main())

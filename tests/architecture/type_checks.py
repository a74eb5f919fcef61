"""The types of sources, tests, benchmarks and examples, and of the programs on README.md and docs/, under two checkers.

`python -m tests.architecture.type_checks` runs mypy and basedpyright beside each other. Each checks the pages together
with its other files: a run of their own would read the library and the frameworks once more. mypy reads all that
pyproject.toml names. Users have either checker, so that basedpyright reads what uses the library as they do: the pages,
the examples and `tests/typing`. The rest takes it two more minutes of processor time, and mypy has checked it as
strictly; `--all`, which a soak passes, has it read that too.

Each page is one program, as where its blocks run, and mypy is as strict as for the sources, with the exceptions in
pyproject.toml. basedpyright takes pages and examples less strictly, as `PYRIGHT` says: functions on pages have no
annotations, names are assigned again with other types, a name that a loop sets is read behind the loop, and modules
that a page writes or compiles aren't there.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from tests.architecture.test_documents import PAGES, program_of
from tests.architecture.tree import CHECKOUT

FOLDER: Final = CHECKOUT / "build" / "pages"
PYRIGHT: Final = (
    "# pyright: standard, reportIncompatibleMethodOverride=false, reportPossiblyUnboundVariable=false, "
    "reportMissingImports=false\n"  # modules that a page makes, and frameworks that aren't installed
)


def write_programs(folder: Path) -> list[Path]:
    """Write each page's program and each example into a folder; return the paths of the pages.

    The lines keep their numbers: what basedpyright reads about its rules is the last one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages = {name: program_of(page.read_text()) for name, page in PAGES.items()}
    written = [_write(folder / _file_name(name), program) for name, program in pages.items() if program.strip()]
    for example in CHECKOUT.glob("examples/*.py"):
        _write(folder / f"example_{example.name}", example.read_text())
    return written


def _file_name(page: str) -> str:
    return page.removesuffix(".md").replace("/", "_").replace("-", "_") + ".py"


def _write(path: Path, program: str) -> Path:
    # The settings of the sources, which no comment changes, have basedpyright read only waivers of its own.
    waived = re.sub(r"(# type: ignore\[[\w-]+\])", r"\1  # pyright: ignore", program)
    path.write_text(f"{waived}\n{PYRIGHT}")
    return path


def main(arguments: list[str]) -> int:
    """Check the files by both checkers, beside each other; return the exit status."""
    pages = write_programs(FOLDER)
    tools = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]
    files = [path for pattern in tools["mypy"]["files"] for path in CHECKOUT.glob(pattern)]
    included = tools["basedpyright"]["include"] if arguments == ["--all"] else ["tests/typing"]
    checkers = [
        subprocess.Popen(["mypy", *map(str, files), *map(str, pages)], cwd=CHECKOUT),
        subprocess.Popen(["basedpyright", *included, str(FOLDER)], cwd=CHECKOUT),
    ]
    return max(checker.wait() for checker in checkers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

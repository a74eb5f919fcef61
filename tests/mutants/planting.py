"""A mutant: a small fault in one place of the source, and how it is planted in a copy of the tree.

The place is found by its text, in which any white space matches any other. Where the file that a mutant names doesn't
hold the text, files of the same name are searched, and then the whole package: a mutant survives a move of its code.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

CHECKOUT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path("src/penstock")
_COPIED: Final = ("src", "tests", "pyproject.toml")
_NEVER_COPIED: Final = shutil.ignore_patterns("__pycache__", ".hypothesis", "golden-*")


class Mutant(NamedTuple):
    """A fault, and the tests that must catch it."""

    name: str
    """The fault, in a few words."""
    file: str
    """The file of the text, below the package."""
    old: str
    """The right code; it occurs once in the file."""
    new: str
    """The faulty code."""
    tests: tuple[str, ...]
    """Test files or functions, as pytest takes them, below the folder of the tests."""


Faults: TypeAlias = dict[str, dict[str, tuple[str, ...]]]
"""By file and by the mutant's name: the right code, the faulty code, and the tests."""


def mutants_of(faults: Faults) -> list[Mutant]:
    """Return the mutants of a table."""
    return [
        Mutant(name, file, old, new, tuple(tests))
        for file, of_file in faults.items()
        for name, (old, new, *tests) in of_file.items()
    ]


class Place(NamedTuple):
    """The place of a mutant: characters [start, stop) of a file below the checkout."""

    file: Path
    start: int
    stop: int


class UnplantableError(Exception):
    """A mutant's text isn't in the source once, or its tests are nowhere."""


def place_of(mutant: Mutant, root: Path = CHECKOUT) -> Place:
    """Return where a mutant is planted.

    Raises:
        UnplantableError: its text is nowhere, or in several places.
    """
    pattern = re.compile(r"\s+".join(map(re.escape, mutant.old.split())))
    found: list[Place] = []
    for files in _files_of(mutant, root):
        if found := list(_places(pattern, files)):
            break
    if len(found) != 1:
        places = ", ".join(f"{place.file.relative_to(root)}" for place in found) or "nowhere"
        raise UnplantableError(
            f"the mutant {mutant.name!r} needs its text once in {mutant.file}, or else once in the package; it is in "
            f"{places}: {mutant.old!r}. Where the code was reworded, set `old` in tests/mutants/table to the line "
            "that now does the same, and `new` to the same fault in it; where it can't occur any more, remove it."
        )
    return found[0]


def _files_of(mutant: Mutant, root: Path) -> Iterator[list[Path]]:
    """Yield the file that a mutant names, then those of the same name elsewhere, then all."""
    own = root / PACKAGE / mutant.file
    yield [own] if own.exists() else []
    everywhere = sorted((root / PACKAGE).rglob("*.py"))
    yield [file for file in everywhere if file.name == own.name]
    yield everywhere


def located_tests(mutant: Mutant, root: Path = CHECKOUT) -> list[str]:
    """Return the mutant's tests as pytest takes them; a file that was moved is found by its name.

    Raises:
        UnplantableError: there is no such file, or there are several.
    """
    found: list[str] = []
    for test in mutant.tests:
        file, *function = test.split("::")
        files = [root / "tests" / file]
        if not files[0].exists():
            files = list((root / "tests").rglob(files[0].name))
        if len(files) != 1 or any(f"def {name}(" not in files[0].read_text() for name in function):
            raise UnplantableError(f"{mutant.name!r} names tests/{test}, which isn't there; name others that notice it")
        found.append("::".join([files[0].relative_to(root).as_posix(), *function]))
    return found


def mutated(mutant: Mutant, place: Place) -> str:
    """Return the text of the mutant's file with the fault."""
    text = place.file.read_text()
    return f"{text[: place.start]}{mutant.new}{text[place.stop :]}"


def _places(pattern: re.Pattern[str], files: list[Path]) -> Iterator[Place]:
    for file in files:
        yield from (Place(file, *match.span()) for match in pattern.finditer(file.read_text()))


def copy_tree(folder: Path) -> None:
    """Copy the source, the tests and the native module that was built in place into an empty folder."""
    for name in _COPIED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=_NEVER_COPIED)
        else:
            shutil.copy2(CHECKOUT / name, folder / name)


class Planted:
    """A mutant within a copy of the tree, for the time of a `with` block."""

    def __init__(self, mutant: Mutant, root: Path) -> None:
        self._mutant = mutant
        self._root = root
        self._place: Place | None = None
        self._text = ""

    def __enter__(self) -> Self:
        """Plant it.

        Raises:
            UnplantableError: as `place_of` does.
        """
        self._place = place_of(self._mutant, self._root)
        self._text = self._place.file.read_text()
        self._write(mutated(self._mutant, self._place))
        return self

    def __exit__(self, *_: object) -> None:
        self._write(self._text)

    def _write(self, text: str) -> None:
        if self._place is None:
            raise ValueError("the mutant isn't planted")
        file = self._place.file
        file.write_text(text)
        # Bytecode counts as current for a file of the same size that was written in the same second.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

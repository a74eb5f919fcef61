"""The table of mutants stays true: each can be planted, and names tests that there are."""

import ast
import builtins
import symtable
from pathlib import Path

import pytest

from tests.mutants.planting import Mutant, Planted, UnplantableError, located_tests, mutated, place_of
from tests.mutants.table import MUTANTS


def test_each_mutant_can_be_planted() -> None:
    """The text of each mutant is in the source once, or the message says how to retarget it; the fault is Python."""
    wrong: list[str] = []
    for mutant in MUTANTS:
        try:
            ast.parse(mutated(mutant, place_of(mutant)))
        except UnplantableError as error:
            wrong.append(str(error))
        except SyntaxError as error:
            wrong.append(f"{mutant.name}: {error}; correct `new`, whose lines keep their indentation")
    assert not wrong, "\n".join(wrong)


def test_each_mutant_changes_code() -> None:
    """A mutant has a name of its own, and its fault is other code than the right one."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert [mutant.name for mutant in MUTANTS if mutant.old.split() == mutant.new.split()] == []


def test_each_fault_uses_names_that_there_are() -> None:
    """An undefined name raises wherever its line runs, so that any test would catch it, and prove nothing."""
    wrong: list[str] = []
    for mutant in MUTANTS:
        wrong += (f"{mutant.name}: {name}" for name in _undefined_names(mutated(mutant, place_of(mutant))))
    assert not wrong, "\n".join(wrong)


def _undefined_names(text: str) -> set[str]:
    module = symtable.symtable(text, "fault", "exec")
    tables, used = [module], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {each.get_name() for each in table.get_symbols() if not (each.is_local() or each.is_free())}
    defined = {each.get_name() for each in module.get_symbols() if each.is_local()}
    return used - defined - {*vars(builtins), "__file__"}


def test_each_mutant_names_tests_that_exist() -> None:
    """Tests that were renamed would make a run of the mutants fail late."""
    missing: list[str] = []
    for mutant in MUTANTS:
        try:
            assert located_tests(mutant), mutant.name
        except UnplantableError as error:
            missing.append(str(error))
    assert not missing, "\n".join(missing)


def test_a_mutant_is_planted_and_removed(tmp_path: Path) -> None:
    """Within the block the file has the fault, wherever the code was moved; after it, and before, the right code."""
    package = tmp_path / "src/penstock"
    package.mkdir(parents=True)
    moved = package / "moved.py"
    moved.write_text("def low(rows):\n    return min(\n        rows, 4\n    )\n")
    mutant = Mutant("a wrong bound", "gone.py", "min( rows, 4", "min(rows, 5", ("none.py",))
    right = moved.read_text()
    with Planted(mutant, tmp_path):
        assert moved.read_text() == "def low(rows):\n    return min(rows, 5\n    )\n"
    assert moved.read_text() == right


@pytest.mark.parametrize("text", ["rows += 1\n", "rows += 2\nrows += 2\n"])
def test_a_text_that_is_not_there_once_is_refused(text: str, tmp_path: Path) -> None:
    """A fault is never planted in a place that may be another one."""
    (tmp_path / "src/penstock").mkdir(parents=True)
    (tmp_path / "src/penstock/file.py").write_text(text)
    with pytest.raises(UnplantableError, match=r"needs its text once"):
        place_of(Mutant("twice", "file.py", "rows += 2", "rows += 3", ("none.py",)), tmp_path)

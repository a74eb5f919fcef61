"""A copy of the package without readings: the calls that take and write times for reports are removed from its source.

Readings are always on, so nothing switches them off. The copy is what the package would be if it had none, and is used
only to measure what they cost. Calls are removed from the syntax tree: statements, and the values of assignments and
expressions. A count of the removed calls shows if the package no longer has the form that this module knows.
"""

import ast
import shutil
from pathlib import Path
from typing import Final

import penstock

_METHODS: Final = {
    "start", "resume", "lap", "begin_around", "end_around", "leave_out", "work", "count", "enter", "leave",
    "add_lock_waits",
}  # fmt: skip
_OWNERS: Final = {"times", "_times"}  # the last word of the object whose method is called
_FOLDERS: Final = ("_graph", "_runtime", "_streaming")
_CLOCK: Final = Path("_loader", "_iterator.py")
_LEAST_REMOVED: Final = 25
_COUNT: Final = """
if self.first is None:
    self.first = self.last = requested
self.last = received
self.wait_seconds += received - requested
self.batches += 1
"""


def write_copy(folder: Path) -> Path:
    """Write the package without readings into a folder, and return the folder.

    Raises:
        RuntimeError: the package has fewer such calls than it should, so the copy would show too little.
    """
    package = Path(penstock.__file__).parent
    copy = folder / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    removed = 0
    for path in (file for name in _FOLDERS for file in (copy / name).rglob("*.py")):
        remover = _Remover()
        tree = remover.visit(ast.parse(path.read_text(encoding="utf-8")))
        if remover.removed:
            removed += remover.removed
            path.write_text(ast.unparse(tree), encoding="utf-8")
    if removed < _LEAST_REMOVED:
        raise RuntimeError(f"the readings have only {removed} calls that are known here, of at least {_LEAST_REMOVED}")
    _replace_count(copy / _CLOCK)
    return folder


def _replace_count(path: Path) -> None:
    """Make the clock of iterators count batches and waiting time alone, as `Loader.stats` needs them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    clock = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Clock")
    count = next(each for each in clock.body if isinstance(each, ast.FunctionDef) and each.name == "count")
    count.body = ast.parse(_COUNT).body
    path.write_text(ast.unparse(tree), encoding="utf-8")


class _Remover(ast.NodeTransformer):
    """Removes calls of the methods of `StepTimes`."""

    def __init__(self) -> None:
        self.removed = 0

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Remove a call that is a statement."""
        if _is_reading(node.value):
            self.removed += 1
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace a call whose result is used: by a time of 0, or by no mark."""
        if _is_reading(node):
            self.removed += 1
            ends = isinstance(node.func, ast.Attribute) and node.func.attr == "end_around"
            return ast.copy_location(ast.Constant(0.0 if ends else None), node)
        self.generic_visit(node)
        return node


def _is_reading(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS):
        return False
    owner = node.func.value
    return ast.unparse(owner).rpartition(".")[2].partition("(")[0] in _OWNERS

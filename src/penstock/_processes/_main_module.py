"""The program's main module in child processes: whether they may import it.

A process that isn't a fork of the program finds functions and classes of the main module only if it imports that module
under another name, as `multiprocessing` does. The import runs every statement of the script that no
`if __name__ == "__main__":` guards. A script that starts its workers in such a statement would start them again in each
process, and so without end.

So `is_imported` looks at the statement of the main module that runs at this moment. If no guard holds it, processes do
not import the main module; its functions and classes travel by value, in cloudpickle's pickles. That answer is final:
later processes must not run the statement either. In a thread that doesn't run the main module, no statement can be
looked at; a script without any guard then counts as unguarded.

Rejected: importing the module with a flag that makes `Loader` do nothing, since the script's own work would still be
done once for each process; and running the guarded part of the script's source alone, which can't tell definitions from
work.
"""

import ast
import errno
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Final, NamedTuple

from penstock._caught import Caught
from penstock._pickles import dumps_by_name, pickler
from penstock._processes._named_modules import unimportable
from penstock.errors import UsageError

UNGUARDED: Final = 'no `if __name__ == "__main__":` guards the statement of this script that starts them'
_INNER: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_GUARDS: Final = ("__name__ == '__main__'", "'__main__' == __name__")

_is_unguarded = False  # True from the first time that an unguarded statement starts processes


def has_cloudpickle() -> bool:
    """Return whether functions and classes of the main module can travel by value."""
    return importlib.util.find_spec("cloudpickle") is not None


def is_importable() -> bool:
    """Return whether `multiprocessing` has its processes import the main module, guarded or not."""
    name = getattr(getattr(_main(), "__spec__", None), "name", None)  # `pdb` runs a script without a specification
    if name is not None:
        return name != "__main__" and not name.endswith(".__main__")
    path = main_path()
    return path is not None and os.path.splitext(os.path.basename(path))[0] != "ipython"


def main_path() -> str | None:
    """Return the path of the main module; None if it has no file."""
    path: str | None = getattr(_main(), "__file__", None)
    if path is None:
        return None
    original: str | None = getattr(sys.modules.get("multiprocessing.process"), "ORIGINAL_DIR", None)
    found = os.path.normpath(os.path.join(original or "", path))
    # A script that Python reads from a pipe has the name "<stdin>", and can't be read again.
    return found if os.path.exists(found) else None


def is_guarded() -> bool:
    """Return whether a process that imports the main module doesn't run the statement that runs now."""
    if not is_importable():
        return True
    guards = list(_guards())
    line = _running_line()
    return bool(guards) if line is None else any(guard.lineno <= line <= _last_line(guard) for guard in guards)


def is_imported() -> bool:
    """Return whether processes that are started now import the main module; False is final."""
    global _is_unguarded
    if not is_importable() or _is_unguarded:
        return False
    if is_guarded():
        return True
    if _running_line() is not None:
        _is_unguarded = True
    return False


def check_guard() -> None:
    """Check that processes which import the main module don't run the statement that runs now.

    Raises:
        UsageError: the script would start processes while each of them imports it.
    """
    if is_importable() and _running_line() is not None and not is_guarded() and not _mentions_name():
        raise UsageError(
            f"processes import the script, and {UNGUARDED}, so each would start others. Move the code that uses them "
            'under `if __name__ == "__main__":`'
        )


def missing(pickled: bytes) -> str:
    """Return why a process can't import what a pickle names, from the main module or others; empty if it can."""
    return (b"__main__" in pickled and _missing_in_main(pickled)) or unimportable(pickled)


def _missing_in_main(pickled: bytes) -> str:
    if not is_imported():
        if is_importable() and not has_cloudpickle():
            return (
                f"processes can't import what the script defines, since {UNGUARDED}; move the code that uses them "
                "under it, or install cloudpickle (the extra `processes`)"
            )
        return "processes can't import what is defined in the main module; cloudpickle would do"
    hidden = [name for name in _names_under_guards() if name.encode() in pickled]
    return f"{hidden[0]} is defined where processes don't, below `if __name__ == …`" if hidden else ""


def pickled_for_processes(value: object, *, searches: bool = True) -> bytes:
    """Return a pickle that processes can load.

    Classes of the main module, and of functions, travel by value, as they do in datasets. A process that also imports
    the main module has other classes of these names there, which elements of the dataset don't have.

    Args:
        value: the value.
        searches: whether classes of modules that processes don't find travel by value, too. The search takes longer
            than to pickle a small value.
    """
    with Caught(Exception):  # classes of functions can't be imported
        pickled = dumps_by_name(value)
        is_found = b"__main__" not in pickled or (not has_cloudpickle() and is_imported())
        if is_found and not (searches and unimportable(pickled)):
            return pickled
    return bytes(pickler().dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _main() -> ModuleType:
    return sys.modules["__main__"]


def _running_line() -> int | None:
    """Return the line of the main module that this thread runs; None if it runs none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(_main()):
            return frame.f_lineno
        frame = frame.f_back
    return None


class _Script(NamedTuple):
    """Parts of the main module's source."""

    conditions: tuple[ast.If, ...] = ()
    """The `if` statements at its top level."""
    used_names: frozenset[str] = frozenset()
    """The names that its functions and classes load."""


def used_names() -> frozenset[str]:
    """Return the names that functions and classes of the main module load; none if its source can't be read."""
    return _script().used_names


def _script() -> _Script:
    return _script_at(getattr(_main(), "__file__", None) or "")


@cache  # parsing takes 20 ms for 1,000 lines, and a loader asks three times
def _script_at(path: str) -> _Script:
    with suppress(SyntaxError, ValueError, TypeError):
        module = ast.parse(_source(path))
        conditions = tuple(statement for statement in module.body if isinstance(statement, ast.If))
        held = [node for node in ast.walk(module) if isinstance(node, _INNER)]
        names = [node for each in held for node in ast.walk(each) if isinstance(node, ast.Name)]
        used = {node.id for node in names if isinstance(node.ctx, ast.Load) and not node.id.startswith("__")}
        return _Script(conditions, frozenset(used))
    return _Script()


def _source(path: str) -> bytes:
    """Return a file's content; nothing if it can't be read.

    Raises:
        OSError: too many files are open at this moment, so the script would seem to have no guard.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
        return b""


def _guards() -> Iterator[ast.If]:
    """Yield the main module's `if __name__ == "__main__":`."""
    yield from (statement for statement in _script().conditions if ast.unparse(statement.test) in _GUARDS)


def _mentions_name() -> bool:
    """Return whether a condition of the main module depends on its name in another way, and may be a guard."""
    tests = [ast.unparse(statement.test) for statement in _script().conditions]
    return any("__name__" in test and test not in _GUARDS for test in tests)


def _last_line(guard: ast.If) -> int:
    return max(statement.end_lineno or statement.lineno for statement in guard.body)


def _names_under_guards() -> Iterator[str]:
    """Yield the names of functions and classes that are defined only where the main module isn't imported."""
    for guard in _guards():
        for statement in ast.walk(ast.Module(guard.body, [])):
            if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                yield statement.name

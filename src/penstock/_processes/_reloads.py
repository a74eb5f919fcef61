"""The modules that the program has loaded again, or whose code it has replaced, since the fork server imported them.

`importlib.reload`, or the import of another module of that name, gives a module another specification. Reloaders of
notebooks do less: `%autoreload` compiles the edited parts of a file, and replaces the code of functions, and constants,
in the module that is there.

Therefore a module of the user's own is compared with what it was, once its file differs from what it was. It has
followed the file if a function has other code, or if a constant has changed to a value that the file now assigns. If
neither is the case, the program runs the code from before the edit, and so do its processes.

Rejected: to import each edited file again, since a file may be edited while the program still runs the old code; and to
look at the modules alone, since programs also change globals of their modules, and replace functions in tests.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Final, NamedTuple, Self

from penstock._caught import Caught
from penstock._module_search import edited_file

_TYPES: Final = (bool, int, float, complex, str, bytes, range, tuple, list, dict, set, frozenset)
_CONSTANTS: Final = (*_TYPES, type(None))
_NAMES: Final = {each.__name__: each for each in (*_TYPES, abs, len, max, min, round, sorted, sum)}  # in expressions


class LoadedModules:
    """The modules that the program has loaded, as they are when this is made, or at the last `take_changed`."""

    def __init__(self) -> None:
        self._specifications: dict[str, object] = {}
        self._sources: dict[str, _Source] = {}
        self.take_changed()

    def take_changed(self) -> list[str]:
        """Return the modules whose code isn't what it was, and note the code of all."""
        changed: list[str] = []
        specifications, sources = self._specifications, self._sources
        # A program with frameworks has thousands of modules, so that each look at one counts.
        for name, module in sys.modules.copy().items():
            if type(module) is not ModuleType:
                continue  # a module of another type, such as a lazy one, may load something when it is looked at
            specification = module.__dict__.get("__spec__")
            is_same = specifications.get(name, self) is specification
            if is_same and (name not in sources or not sources[name].is_followed(vars(module))):
                continue
            if name in specifications:
                changed.append(name)
            specifications[name] = specification
            self._sources.pop(name, None)
            if (path := edited_file(name)) is not None:
                self._sources[name] = _Source(name, path, vars(module))
        return changed


class _Source:
    """The file of a module, and what the module has made of it."""

    def __init__(self, name: str, path: str, module: Mapping[str, object]) -> None:
        self._name = name
        self._path = path
        self._stamp = _stamp(path)
        self._parts = {part: _Seen.of(value, closure) for part, (value, closure) in _parts(name, module)}

    def is_followed(self, module: Mapping[str, object]) -> bool:
        """Return whether the module has the code of its file, which differs from what it was."""
        if _stamp(self._path) == self._stamp:
            return False
        constants: dict[str, object] = {}
        for name, (part, closure) in _parts(self._name, module):
            if self._parts.get(name) == _Seen.of(part, closure):
                continue
            if not isinstance(part, _CONSTANTS):
                return True
            constants[name.rpartition(".")[2]] = part
        return bool(constants) and _assigns_one_of(self._path, constants)


class _Seen(NamedTuple):
    """A function or constant as it was, without its value.

    Attributes:
        identities: of the code or value, and of the closure.
        code: so that its identity stays its own; a constant may be large, and the program may drop it.
    """

    identities: tuple[int, int]
    code: CodeType | None

    @classmethod
    def of(cls, part: object, closure: object) -> "Self":
        """Return it for a code or value, and a closure."""
        return cls((id(part), id(closure)), part if isinstance(part, CodeType) else None)


def _stamp(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size
    return None


def _parts(
    module: str, namespace: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, tuple[object, object]]]:
    """Yield the name of each function and constant of a module and its classes; its code or value, and its closure.

    Only the types of other values are looked at: an object may load something when it is asked for an attribute.
    """
    for name, value in [*namespace.items()]:
        path, kind = prefix + name, type(value)
        if kind in _CONSTANTS and not name.startswith("__"):
            yield path, (value, None)
        elif (
            issubclass(kind, type)
            and vars(value).get("__module__") == module
            and getattr(value, "__qualname__", "") == path
        ):
            yield from _parts(module, vars(value), f"{path}.")
        for number, function in enumerate(_functions(value)):
            if type(function) is FunctionType and function.__module__ == module:
                yield f"{path} {number}", (function.__code__, function.__closure__)


def _functions(value: object) -> Sequence[object]:
    if type(value) is property:
        return value.fget, value.fset, value.fdel
    return (getattr(value, "__func__", None) if type(value) in (staticmethod, classmethod) else value,)


def _assigns_one_of(path: str, constants: Mapping[str, object]) -> bool:
    """Return whether a file assigns one of these values to its name, by an expression without names of its own."""
    with Caught(Exception):  # the file may be in the middle of an edit
        with open(path, "rb") as file:
            module = ast.parse(file.read())
        return any(
            isinstance(target, ast.Name) and target.id in constants and _is_value(expression, constants[target.id])
            for statement in ast.walk(module)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and (expression := statement.value) is not None
            for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        )
    return False


def _is_value(expression: ast.expr, value: object) -> bool:
    with Caught(Exception):  # it has other names
        code = compile(ast.Expression(expression), "<constant>", "eval")
        found: object = FunctionType(code, {"__builtins__": _NAMES})()
        return type(found) is type(value) and bool(found == value)
    return False

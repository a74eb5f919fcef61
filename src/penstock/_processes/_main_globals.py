"""The script's global values, for processes that import the script.

The problem: a guarded script may set globals under its guard, such as the parsed arguments, or change others before it
starts processes. In a process that imports the script these are missing, or have the values of the import, while a fork
of the program would have the program's. Functions would compute other elements there, without an error.

The solution: `Supervisor` notes the values when it is made, and sends them to each process that imports the script,
before all else. There they take the place of those of the import where they differ. A process in place of one that died
gets the same ones. Only values that are used in functions and classes of the script travel, and only plain ones:
numbers, texts, paths, dtypes, functions and classes by name, and small containers and objects of these. A large or
other value, such as an array, a model or a lock, is as after the import.

Rejected: to send the script's functions and classes by value with their globals. A process then has two classes of each
name, so that `isinstance` and `pickle.dumps` fail in user code, and large globals are copied at each start.
"""

import inspect
import pickle
import sys
from collections import deque
from collections.abc import Callable, Collection
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, cast

import numpy as np

from penstock._caught import CaughtFailure
from penstock._processes._main_module import is_importable, used_names

_TEXTS: Final = (str, bytes)
_BY_NAME: Final = (type, FunctionType, BuiltinFunctionType)
_LEAVES: Final = (
    *(type(None), bool, int, float, complex, Decimal, Fraction, Enum, PurePath, *_TEXTS),
    *(date, timedelta, time, tzinfo, range, slice, np.generic, np.dtype, *_BY_NAME),
)
_LEAVES_OF_TORCH: Final = frozenset({"device", "dtype", "layout", "memory_format"})
_CONTAINERS: Final = (list, tuple, set, frozenset, deque, dict)
_MAX_VALUES: Final = 10_000  # of a global, with all that is in it: they are pickled at each start of workers
_MAX_CHARACTERS: Final = 1 << 20  # of its texts


class MainGlobals:
    """The plain globals of the main module when this was made; a process that unpickles it has them from then on."""

    def __init__(self) -> None:
        self._pickled = _pickled_globals()

    def __reduce__(self) -> "tuple[Callable[[dict[str, bytes]], None], tuple[dict[str, bytes]]]":
        return _set_globals, (self._pickled,)


def _pickled_globals() -> dict[str, bytes]:
    if not is_importable():
        return {}
    values = vars(sys.modules["__main__"])
    found = {name: _pickled(values[name]) for name in used_names() & values.keys()}
    return {name: pickled for name, pickled in found.items() if pickled is not None}


def _pickled(value: object) -> bytes | None:
    """Return the pickle of a plain value; None for another one."""
    with CaughtFailure():  # of an object's own code
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if _is_plain(value) else None
    return None


def _set_globals(pickled: dict[str, bytes]) -> None:
    namespaces = _namespaces()
    for name, each in pickled.items():
        with CaughtFailure():  # such as of a class that is defined only in the program
            value = pickle.loads(each)
            for values in namespaces:
                # The same one stays, since others may refer to it. Equal ones may differ, as 1 and 1.0.
                if name not in values or _pickled(values[name]) != each:
                    values[name] = value


def _namespaces() -> list[dict[str, Any]]:
    """Return the main module's globals, and those of its functions: in processes, multiprocessing makes these two."""
    values = vars(sys.modules["__main__"])
    found = {id(values): values}
    for value in [*values.values()]:
        for each in [value, *vars(value).values()] if isinstance(value, type) else [value]:
            function = cast("Any", each).__func__ if isinstance(each, staticmethod | classmethod) else each
            if isinstance(function, FunctionType):
                function = inspect.unwrap(function)
            if isinstance(function, FunctionType) and function.__globals__.get("__name__") == values["__name__"]:
                found[id(function.__globals__)] = function.__globals__
    return [*found.values()]


def _is_plain(value: object) -> bool:
    waiting, characters = [value], 0
    for _ in range(_MAX_VALUES):
        if not waiting:
            return True
        each = waiting.pop()
        characters += len(each) if isinstance(each, _TEXTS) else 0
        held = _held(each)
        if held is None or len(held) > _MAX_VALUES or characters > _MAX_CHARACTERS:
            return False
        waiting.extend(held)
    return False


def _held(value: object) -> Collection[object] | None:
    """Return the values that a value holds; None if it isn't plain."""
    kind: Any = type(value)
    if isinstance(value, _LEAVES) or (kind.__module__ == "torch" and kind.__name__ in _LEAVES_OF_TORCH):
        return ()
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    is_usual = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    is_plain = issubclass(kind, _CONTAINERS) or (is_usual and not issubclass(kind, ModuleType))
    return [*_items(value), *_attributes(value)] if is_plain else None


def _items(value: object) -> Collection[object]:
    if isinstance(value, dict):
        known = cast("dict[object, object]", value)
        return [*known, *known.values()]
    return cast("Collection[object]", value) if isinstance(value, _CONTAINERS) else ()


def _attributes(value: object) -> Collection[object]:
    slots: list[str] = [name for each in type(value).__mro__ for name in vars(each).get("__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]

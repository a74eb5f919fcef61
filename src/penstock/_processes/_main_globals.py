"""The script's global values, for processes that import the script.

The problem: a guarded script may set globals under its guard, such as the parsed arguments, or change others before it
starts processes. In a process that imports the script these are missing, or have the values of the import, while a fork
of the program would have the program's. Functions would compute other elements there, without an error.

The solution: `Supervisor` notes the values when it is made, and sends them to each process that imports the script,
before all else. There they take the place of those of the import where they differ. A process in place of one that died
gets the same ones. Only values that are used in functions and classes of the script travel, and only plain ones:
numbers, texts, paths, dates, dtypes, and small containers and objects of these. A large or other value, such as an
array, a model, a function or a lock, is as after the import: processes import no module for it, it isn't pickled, and
a generator of random numbers keeps the process's own seed.

Rejected: to send the script's functions and classes by value with their globals. A process then has two classes of each
name, so that `isinstance` and `pickle.dumps` fail in user code, and large globals are copied at each start.
"""

import inspect
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import FunctionType, SimpleNamespace
from typing import Any, Final, cast

import numpy as np

from penstock._caught import CaughtFailure
from penstock._processes._main_module import is_importable, used_names

_TEXTS: Final = (str, bytes)
_SCALARS: Final = (
    *(type(None), bool, int, float, complex, Decimal, Fraction, PurePath, date, time, timedelta),
    *(range, slice, np.number, np.bool_, np.datetime64, np.timedelta64, np.dtype, *_TEXTS),
)
_SCALARS_OF_TORCH: Final = frozenset({"device", "dtype", "layout", "memory_format"})
_SEQUENCES: Final = (list, tuple)
_SETS: Final = (set, frozenset)
_DICTS: Final = (dict, OrderedDict, Counter)
_FACTORIES: Final = (None, int, float, str, list, dict, set)
_PICKLING: Final = ("__reduce_ex__", "__reduce__", "__getstate__")
_MAX_VALUES: Final = 10_000  # of a global, with all that is in it: they are pickled at each start of workers
_MAX_CHARACTERS: Final = 1 << 20  # of its texts
_NO_PICKLE: Final = b"globals "  # before the pickle, which is not searched for modules to import ahead


class MainGlobals:
    """The plain globals of the main module when this was made; a process that unpickles it has them from then on."""

    def __init__(self) -> None:
        self._pickled = _pickled_globals()

    def __reduce__(self) -> tuple[Callable[[bytes], None], tuple[bytes]]:
        return _set_globals, (_NO_PICKLE + pickle.dumps(self._pickled),)


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


def _set_globals(sent: bytes) -> None:
    namespaces = _namespaces()
    pickled: dict[str, bytes] = pickle.loads(sent[len(_NO_PICKLE) :])
    for name, each in pickled.items():
        with CaughtFailure():  # such as of a class that is defined only in the program
            value = pickle.loads(each)
            for values in namespaces:
                # The same one stays, since others may refer to it.
                if name not in values or not _same(values[name], value):
                    values[name] = value


def _same(first: object, second: object) -> bool:
    """Return whether two values are equal and of one type, with all that is in them: 1 and 1.0 are not."""
    if type(first) is not type(second):
        return False
    held, other = _held(first), _held(second)
    if held and other and type(first) in _SETS:  # their order differs from process to process
        return set(map(pickle.dumps, held)) == set(map(pickle.dumps, other))
    if not held or not other:
        return pickle.dumps(first) == pickle.dumps(second)
    return len(held) == len(other) and all(map(_same, held, other))


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
    """Return the values that a value holds, all that its pickle has; None if it isn't plain."""
    kind: Any = type(value)
    if kind in _DICTS:
        known = cast("dict[object, object]", value)
        return [*known, *known.values()] if len(known) <= _MAX_VALUES else None
    if kind in _SEQUENCES or kind in _SETS or _is_named_tuple(value):
        return cast("Collection[object]", value)
    if kind is defaultdict:
        made = cast("defaultdict[object, object]", value)
        return [dict(made)] if made.default_factory in _FACTORIES else None
    if _is_scalar(value, kind):
        return ()
    if isinstance(value, (*_SCALARS, *_SEQUENCES, *_SETS, dict)) or hasattr(kind, "__del__"):
        return None
    if kind is SimpleNamespace:
        return [vars(value)]
    has_attributes = hasattr(value, "__dict__")
    if is_dataclass(kind) and not has_attributes:
        return [getattr(value, field.name) for field in fields(kind)]
    is_usual = all(getattr(kind, name) is getattr(object, name) for name in _PICKLING)
    return [object.__getstate__(value)] if is_usual and has_attributes and not callable(value) else None


def _is_scalar(value: object, kind: type[object]) -> bool:
    if isinstance(value, type):  # NumPy's, by which scripts choose a dtype
        return issubclass(value, np.generic)
    if kind.__module__ == "torch":
        return kind.__name__ in _SCALARS_OF_TORCH
    return issubclass(kind, Enum) or (issubclass(kind, _SCALARS) and not hasattr(value, "__dict__"))


def _is_named_tuple(value: object) -> bool:
    return issubclass(type(value), tuple) and hasattr(value, "_fields") and not hasattr(value, "__dict__")

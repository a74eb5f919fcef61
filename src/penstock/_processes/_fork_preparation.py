"""The data that make a forked process like the program, of which it is no fork, and the modules it will import.

The paths, the environment variables and the main module are those that `multiprocessing` sends to its processes. The
umask, resource limits, priorities and the program's affinity to cores are not sent; they are as they were when the
server started. The modules that a pickle will import are found without loading it: the fork server imports them ahead.

A module that the program is importing can't be among them: processes would import it, too, and run the statement that
starts them. `importing` finds such names, and their sender refuses them.
"""

import multiprocessing
import os
import pickletools
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from multiprocessing import process, spawn
from typing import Final, cast

from penstock._frozen import frozen
from penstock._processes._main_module import main_path
from penstock.errors import UsageError

_MAX_OPCODES: Final = 20_000  # of each pickle: functions are named early, and a list of a million names isn't searched
_KEPT_BYTES: Final = 1 << 16  # of a pickle whose modules are kept
_STRINGS: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_BYTES: Final = frozenset({"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_MAIN: Final = frozenset({"__main__", "__mp_main__"})


@frozen
class Preparation:
    """The data that make a process like the program.

    Attributes:
        given: the argument of `multiprocessing.spawn.prepare`, without the main module.
        main: the part of that argument that concerns the main module.
        environment: the environment variables.
        modules: that the process will import.
    """

    given: dict[str, object]
    main: dict[str, object]
    environment: dict[str, str]
    modules: tuple[str, ...]


def preparation(
    name: str, variables: Mapping[str, str], modules: tuple[str, ...], *, imports_main: bool
) -> Preparation:
    """Return the data that make a process like this one is now.

    Args:
        name: of the process.
        variables: defaults for variables that the environment lacks.
        modules: that the process will import.
        imports_main: whether it imports the main module.

    Raises:
        UsageError: this is a child process that is importing the main module.
    """
    current = process.current_process()
    if getattr(current, "_inheriting", False):
        raise UsageError(
            "this script starts processes while a process imports it, and so without end; move the code that uses "
            "them under `if __name__ == '__main__':`"
        )
    original: str | None = getattr(process, "ORIGINAL_DIR", None)
    given: dict[str, object] = {
        "name": name,
        "authkey": bytes(current.authkey),
        "sys_path": current_path(),
        "sys_argv": sys.argv,
        "orig_dir": original,
    }
    with suppress(FileNotFoundError):  # it has been deleted: the process begins where the fork server is
        given["dir"] = os.getcwd()
    if (method := cast("str | None", multiprocessing.get_start_method(allow_none=True))) is not None:
        given["start_method"] = method  # to ask otherwise would fix it
    return Preparation(given, _main() if imports_main else {}, {**variables, **os.environ}, modules)


def current_path() -> list[str]:
    """Return the module search path of this process, for a process that may have another working directory."""
    return [entry or getattr(process, "ORIGINAL_DIR", None) or "" for entry in sys.path]


def _main() -> dict[str, object]:
    name: str | None = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = main_path()
    return {} if path is None else {"init_main_from_path": path}


def adopt(prepared: Preparation, *, with_main: bool) -> None:
    """Make this process like the program was; the main module is imported as `__mp_main__`."""
    for name in os.environ.keys() - prepared.environment.keys():
        del os.environ[name]
    os.environ.update(prepared.environment)
    spawn.prepare({**prepared.given, **(prepared.main if with_main else {})})


@contextmanager
def inheriting() -> Generator[None]:
    """Mark this process as one that imports the program's modules, so that these can't start processes.

    `multiprocessing` respects the mark, too.
    """
    current = vars(process.current_process())
    current["_inheriting"] = True
    try:
        yield
    finally:
        del current["_inheriting"]


# -- the modules that a pickle names


def modules_of(pickled: bytes) -> tuple[str, ...]:
    """Return the modules whose functions and classes a pickle names, without the main one, in order.

    Bytes within it that are pickles are searched, too.
    """
    # Loaders that follow each other, and the workers of one, start with the same bytes, and an opcode takes 3 us.
    return _found(pickled) if len(pickled) <= _KEPT_BYTES else _found.__wrapped__(pickled)


@lru_cache(maxsize=32)
def _found(pickled: bytes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(module for module in _named(pickled) if module not in _MAIN))


def importing(pickled: bytes) -> str:
    """Return why processes that load a pickle would start others without end; empty if they wouldn't."""
    for name in modules_of(pickled):
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            imported = ".".join(parts[:length])
            if getattr(getattr(sys.modules.get(imported), "__spec__", None), "_initializing", False):
                return (
                    f"the module {imported} starts processes while it is imported, and each process would import it, "
                    "too, and so start others. Move the code that uses them into a function, and call it from the "
                    "program's own script"
                )
    return ""


def naming(modules: Iterable[str]) -> bytes:
    """Return a pickle that names modules, for `modules_of`; it is never loaded."""
    return b"".join((b"\x80\x02", *(f"c{module}\n_\n0".encode() for module in modules), b"N."))


def _named(pickled: bytes) -> Iterator[str]:
    strings = _Strings()
    with suppress(ValueError, UnicodeDecodeError):  # bytes that only look like a pickle
        for opcode, argument, _ in islice(pickletools.genops(pickled), _MAX_OPCODES):
            if opcode.name == "GLOBAL":
                yield str(argument).split(" ")[0]
            elif opcode.name == "STACK_GLOBAL" and strings.before is not None:
                yield strings.before
            elif opcode.name in _BYTES and isinstance(argument, bytes) and argument[:1] == b"\x80":
                yield from modules_of(argument)
            strings.follow(opcode.name, argument)


class _Strings:
    """The last two strings on a pickle's stack; a name follows its module.

    Attributes:
        before: the last but one.
    """

    def __init__(self) -> None:
        self.before: str | None = None
        self._last: str | None = None
        self._memo: list[str | None] = []

    def follow(self, opcode: str, argument: object) -> None:
        """Apply an opcode, as far as it concerns strings."""
        if opcode == "MEMOIZE":
            self._memo.append(self._last)
        elif opcode in _STRINGS:
            self.before, self._last = self._last, str(argument)
        elif opcode in _GETS and isinstance(argument, int):
            self.before, self._last = self._last, self._memo[argument] if argument < len(self._memo) else None
        elif opcode != "FRAME":
            self.before = self._last = None

"""The modules whose functions and classes a pickle names, found without loading it: the fork server imports them ahead.

A module that the program is importing can't be among them: processes would import it, too, and run the statement that
starts them. Nor can one that processes don't find. `unimportable` finds such names, and their sender refuses them.
"""

import pickletools
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Final

from penstock._module_search import ModuleSearch

_MAX_OPCODES: Final = 20_000  # of each pickle: functions are named early, and a list of a million names isn't searched
_KEPT_BYTES: Final = 1 << 16  # of a pickle whose modules are kept
_STRINGS: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_BYTES: Final = frozenset({"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_MAIN: Final = frozenset({"__main__", "__mp_main__"})


def modules_of(pickled: bytes) -> tuple[str, ...]:
    """Return the modules whose functions and classes a pickle names, without the main one, in order.

    Bytes within it that are pickles are searched, too.
    """
    # Loaders that follow each other, and the workers of one, start with the same bytes, and an opcode takes 3 us.
    return _found(pickled) if len(pickled) <= _KEPT_BYTES else _found.__wrapped__(pickled)


@lru_cache(maxsize=32)
def _found(pickled: bytes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(module for module in _named(pickled) if module not in _MAIN))


def unimportable(pickled: bytes) -> str:
    """Return why processes can't import the modules that a pickle names; empty if they can."""
    modules, search = modules_of(pickled), ModuleSearch()
    return _importing(modules) or next((_not_found(name) for name in modules if not search.finds(name)), "")


def _not_found(name: str) -> str:
    return (
        f"processes don't find the module {name} along the program's sys.path. Put its directory there, or install "
        "cloudpickle (the extra `processes`), which sends its functions and classes by value"
    )


def _importing(modules: tuple[str, ...]) -> str:
    """Return why processes that import these modules would start others without end; empty if they wouldn't."""
    for name in modules:
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

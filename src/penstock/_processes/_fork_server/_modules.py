"""The modules that a pickle will import, found without loading it: the fork server imports them ahead."""

import pickletools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

_MAX_OPCODES: Final = 20_000  # of each pickle: functions are named early, and a list of a million names isn't searched
_STRINGS: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_BYTES: Final = frozenset({"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_MAIN: Final = frozenset({"__main__", "__mp_main__"})


def modules_of(pickled: bytes) -> tuple[str, ...]:
    """Return the modules whose functions and classes a pickle names, without the main one, in order.

    Bytes within it that are pickles are searched, too.
    """
    return tuple(dict.fromkeys(module for module in _named(pickled) if module not in _MAIN))


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
                yield from _named(argument)
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

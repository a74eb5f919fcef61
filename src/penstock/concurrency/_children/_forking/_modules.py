"""Which modules a pickle will import, as far as that can be told without loading it."""

import pickletools
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

_MOST_OPCODES: Final = 20_000  # of each pickle: functions come early, and a list of a million names isn't walked
_STRINGS: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_BYTES: Final = frozenset({"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_MAIN: Final = frozenset({"__main__", "__mp_main__"})


def modules_of(pickled: bytes) -> tuple[str, ...]:
    """Return the modules whose functions and classes a pickle names, without the main one, in order.

    What it holds as bytes is looked through as well, where it is a pickle.
    """
    return tuple(dict.fromkeys(module for module in _named(pickled) if module not in _MAIN))


def _named(pickled: bytes) -> Iterator[str]:
    memo: list[str | None] = []
    before: str | None = None  # the last two strings on the stack; a name follows its module
    last: str | None = None
    with suppress(ValueError, UnicodeDecodeError):  # bytes that only look like a pickle
        for opcode, argument, _ in islice(pickletools.genops(pickled), _MOST_OPCODES):
            if opcode.name == "MEMOIZE":
                memo.append(last)
            elif opcode.name == "GLOBAL":
                yield str(argument).split(" ")[0]
            elif opcode.name == "STACK_GLOBAL":
                if before is not None:
                    yield before
                before = last = None
            elif opcode.name in _STRINGS:
                before, last = last, str(argument)
            elif opcode.name in _GETS:
                known = int(argument or 0)
                before, last = last, memo[known] if known < len(memo) else None
            elif opcode.name != "FRAME":
                before = last = None
                if opcode.name in _BYTES and isinstance(argument, bytes) and argument[:1] == b"\x80":
                    yield from _named(argument)

"""The global generators in a worker: at its start as torch seeds them, and then anew for each item.

So what an item draws depends on the base seed, the epoch, the batch and the row, and not on which worker computes it,
after what, or how often.

Seeding the generators of `random` and NumPy takes 25 microseconds, and few datasets draw from them. So neither is
seeded until an item has drawn from it, which moves its state: that item is then computed again, from its own seed, and
from then on the worker seeds that generator for each item. Where the state lies is no promise of Python's or NumPy's:
it is compared with what they tell first, and where it isn't as expected the generator is always seeded.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import torch

T = TypeVar("T")

_WORD: Final = 0xFFFFFFFF
_SIGNED: Final = 0x7FFFFFFFFFFFFFFF
_STATE_BYTES: Final = 4 * 624  # of a Mersenne Twister, beside its position
_NUMPY: Final = 0x4E554D50  # beside the seed: `random` has the same generator and would draw the same numbers


class _Watched:
    """A Mersenne Twister that is looked at without asking for its state, which would take as long as to seed it.

    Args:
        seed: seeds it.
        owner: kept, since the addresses are in it.
        first: the address of the first of its words.
        position: the address of its position in them.
    """

    def __init__(self, seed: Callable[[int], object], owner: object, first: int, position: int) -> None:
        self.seed = seed
        self._owner = owner
        self._first = ctypes.c_uint32.from_address(first)
        self._position = ctypes.c_int32.from_address(position)

    def look(self) -> tuple[int, int]:
        """Return what changes whenever it is drawn from: all words do when the position comes round."""
        return self._position.value, self._first.value


_watched: Final[list[_Watched]] = []  # that no item has drawn from
_drawn: Final[list[Callable[[int], object]]] = []  # what seeds the others


def seed_worker(seed: int, numpy_words: Sequence[int]) -> None:
    """Seed all generators, as torch seeds those of a worker, and begin to watch.

    Args:
        seed: for `random` and torch, those of devices included.
        numpy_words: for NumPy.
    """
    random.seed(seed)
    manual_seed: Callable[[int], object] = vars(torch)["manual_seed"]
    manual_seed(seed)
    np.random.seed(numpy_words)
    _watched.clear()
    _drawn.clear()
    for found, seed_it in ((_watched_python(), random.seed), (_watched_numpy(), _seed_numpy)):
        if found is None:
            _drawn.append(seed_it)
        else:
            _watched.append(found)


def _watched_python() -> _Watched | None:
    twister: Any = vars(random)["_inst"]
    position = id(twister) + object.__basicsize__
    if type(twister).__basicsize__ < object.__basicsize__ + 4 + _STATE_BYTES:
        return None
    found = _Watched(random.seed, twister, position + 4, position)
    words: tuple[int, ...] = twister.getstate()[1]
    return found if found.look() == (words[-1], words[0]) else None


def _watched_numpy() -> _Watched | None:
    told: Any = np.random.get_state(legacy=False)
    if told["bit_generator"] != "MT19937":
        return None
    bits: Callable[[], Any] = vars(np.random)["get_bit_generator"]  # which NumPy's stubs lack
    twister = bits()
    address: int = twister.ctypes.state_address
    found = _Watched(_seed_numpy, twister, address, address + _STATE_BYTES)
    return found if found.look() == (int(told["state"]["pos"]), int(told["state"]["key"][0])) else None


def _seed_numpy(seed: int) -> None:
    np.random.seed((seed & _WORD, seed >> 32, _NUMPY))


def seed_all(seed: int) -> None:
    """Seed all generators that code on the host may draw from.

    Args:
        seed: 64 bits.
    """
    random.seed(seed)
    _seed_numpy(seed)
    torch.default_generator.manual_seed(seed & _SIGNED)


def seeded(seed: int, function: Callable[..., T], *arguments: object) -> T:
    """Return what a function returns, computed from seeded generators; it is called again where that turns out needed.

    Args:
        seed: 64 bits.
        function: of the user's.
        *arguments: for it.
    """
    while True:
        torch.default_generator.manual_seed(seed & _SIGNED)  # only this one: workers compute on the host
        for seed_it in _drawn:
            seed_it(seed)
        before = [each.look() for each in _watched]
        try:
            result = function(*arguments)
        except Exception:
            if not _note_moved(before):
                raise
        else:
            if not before or not _note_moved(before):
                return result


def _note_moved(before: list[tuple[int, int]]) -> bool:
    """Return whether generators were drawn from that were not seeded; they will be."""
    moved = [each for each, at in zip(_watched, before, strict=True) if each.look() != at]
    for each in moved:
        _watched.remove(each)
        _drawn.append(each.seed)
    return bool(moved)

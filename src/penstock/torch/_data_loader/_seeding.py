"""The global random generators in a worker, seeded at its start as torch seeds them, and again for each item.

So the numbers that an item draws depend on the base seed, the epoch, the batch and the row; not on the worker that
computes it, on earlier items, or on repetitions.

If `worker_init_fn` seeds torch's generator, then the seed that it sets in worker 0 takes the place of the base seed,
and `torch.initial_seed()` returns it in each item. So items are the same for any number of workers then, too, also
where the function adds the number of the worker to the seed.

The problem: seeding the generators of `random` and NumPy takes 25 microseconds, and few datasets draw from them.

The solution: the worker seeds neither until an item has drawn from it, which changes the generator's state. Then the
worker computes the latest items again, with the generator seeded for each, and from then on seeds that generator for
each item. To see the change cheaply, the worker reads the state in memory. Python and NumPy don't document its address,
so at its start the worker compares the memory with the state that they return; if the two differ, it always seeds the
generator.
"""

import ctypes
import operator
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch

from penstock._seeds import derive, derive_block

T = TypeVar("T")

_WORD: Final = 0xFFFFFFFF
_SIGNED: Final = 0x7FFFFFFFFFFFFFFF
_UNSIGNED: Final = 0xFFFFFFFFFFFFFFFF
_STATE_BYTES: Final = 4 * 624  # of a Mersenne Twister, beside its position
_FEW_ROWS: Final = 8  # whose seeds are derived one by one, which takes less time than all at once
_NUMPY: Final = 0x4E554D50  # added to the seed: `random` uses the same algorithm and would draw the same numbers


class Seed(NamedTuple):
    """The seed of an epoch, a batch or an item.

    Attributes:
        value: 64 bits.
        shown: the seed that `torch.initial_seed()` returns; None for `value`.
    """

    value: int
    shown: int | None = None


class _Watched:
    """A Mersenne Twister whose state is read in memory: `getstate` would take as long as seeding.

    Args:
        seed: seeds the generator.
        owner: the object that the addresses are in; kept alive.
        first: the address of the first word of the state.
        position: the address of the position in the state.
    """

    def __init__(self, seed: Callable[[int], object], owner: object, first: int, position: int) -> None:
        self.seed = seed
        self._owner = owner
        self._first = ctypes.c_uint32.from_address(first)
        self._position = ctypes.c_int32.from_address(position)

    def look(self) -> tuple[int, int]:
        """Return two values that change with any draw: the position, and a word that changes when it wraps around."""
        return self._position.value, self._first.value


_watched: Final[list[_Watched]] = []  # generators that no item has drawn from
_seeders: Final[list[Callable[[int], object]]] = []  # the functions that seed the other generators


def seed_worker(seed: int, numpy_words: Sequence[int]) -> None:
    """Seed all generators, as torch seeds those of a worker, and start watching them.

    Args:
        seed: the seed for `random` and torch, devices included.
        numpy_words: the seed for NumPy.
    """
    random.seed(seed)
    manual_seed: Callable[[int], object] = vars(torch)["manual_seed"]
    manual_seed(seed)
    np.random.seed(numpy_words)
    _watched.clear()
    _seeders.clear()
    for found, seed_it in ((_watched_python(), random.seed), (_watched_numpy(), _seed_numpy)):
        if found is None:
            _seeders.append(seed_it)
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
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    bits: Callable[[], Any] = vars(np.random)["get_bit_generator"]  # which NumPy's stubs lack
    twister = bits()
    address: int = twister.ctypes.state_address
    found = _Watched(_seed_numpy, twister, address, address + _STATE_BYTES)
    return found if found.look() == (int(state["state"]["pos"]), int(state["state"]["key"][0])) else None


def _seed_numpy(seed: int) -> None:
    np.random.seed((seed & _WORD, seed >> 32, _NUMPY))


def _seed_torch(seed: Seed) -> None:
    generator = torch.default_generator  # only this one: workers compute on the host
    generator.manual_seed(seed.value & _SIGNED)
    if seed.shown is not None:
        state = generator.get_state()
        state.numpy()[:8].view(np.uint64)[0] = seed.shown & _UNSIGNED  # a state begins with the seed, then the numbers
        generator.set_state(state)


def seed_all(seed: Seed) -> None:
    """Seed all generators that code on the host may draw from."""
    random.seed(seed.value)
    _seed_numpy(seed.value)
    _seed_torch(seed)


def seeded(seed: Seed, function: Callable[[Any], T], argument: object) -> T:
    """Call a function with seeded generators, again if it drew from one that was not seeded, and return its result.

    Args:
        seed: the seed of the item.
        function: a function of the user's.
        argument: its argument.
    """
    return seeded_anew(seed, function, lambda: argument)


def seeded_anew(seed: Seed, function: Callable[[Any], T], argument: Callable[[], object]) -> T:
    """Call a function as `seeded` does, each time with a new argument: the function may change it.

    Args:
        seed: the seed of the item.
        function: a function of the user's.
        argument: returns the argument; called before the generators are seeded.
    """
    while True:
        given = argument()
        before = _looks()
        try:
            _seed_item(seed.value, seed.shown)
            result = function(given)
        except Exception:
            if not _note_moved(before):
                raise
        else:
            if not _note_moved(before):
                return result


def seeded_each(seed: Seed, rows: range, function: Callable[[Any], T], arguments: Sequence[object]) -> list[T]:
    """Call a function with the argument of each row, with generators seeded for the row, and return the results.

    The generators are looked at after 1, 2, 4 rows and so on, since a look takes as long as a cheap item. So where one
    draws for the first time, at most half of the rows are computed twice.

    Args:
        seed: the seed of the batch.
        rows: the rows, each with a seed of its own.
        function: a function of the user's.
        arguments: the argument of each row.
    """
    if len(rows) <= _FEW_ROWS:
        seeds = [derive(seed.value, row) for row in rows]
    else:
        seeds = derive_block(seed.value, np.arange(rows.start, rows.stop)).tolist()
    results: list[T] = []
    while (start := len(results)) < len(seeds):
        run = slice(start, max(2 * start, 1))
        results += _seeded_run(seeds[run], seed.shown, function, partial(operator.getitem, arguments, run))
    return results


def _seeded_run(
    seeds: Sequence[int], shown: int | None, function: Callable[[Any], T], arguments: Callable[[], Sequence[object]]
) -> list[T]:
    while True:
        given = arguments()
        before = _looks()
        results: list[T] = []
        try:
            for value, argument in zip(seeds, given, strict=True):
                _seed_item(value, shown)
                results.append(function(argument))
        except Exception:
            if not _note_moved(before):
                raise
        else:
            if not _note_moved(before):
                return results


def _seed_item(value: int, shown: int | None) -> None:
    """Seed torch's generator, and those that an item has drawn from."""
    if shown is None:
        torch.default_generator.manual_seed(value & _SIGNED)
    else:
        _seed_torch(Seed(value, shown))
    for seed_it in _seeders:
        seed_it(value)


def _looks() -> list[tuple[int, int]]:
    return [each.look() for each in _watched]


def _note_moved(before: list[tuple[int, int]]) -> bool:
    """Return whether generators that were not seeded were drawn from; from now on they are seeded."""
    after = _looks()
    if after == before:
        return False
    for each, at, now in zip(_watched.copy(), before, after, strict=True):
        if at != now:
            _watched.remove(each)
            _seeders.append(each.seed)
    return True

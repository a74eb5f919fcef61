"""Random arguments of functions: generators, keys of JAX, and seeded global generators.

Each is a pure function of a step's seed and the element's seed position.

*Generators.* One NumPy `Generator` is set to one element's stream after the other. The bit generator is Philox (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Its 128-bit key is (seed, derive(seed, "key")) of the
step; its 256-bit counter starts at (0, ordinal, position, epoch), the lowest word first. So streams of different
elements can't overlap before the lowest word has counted to 2**64, and setting one costs a few stores.

Assigning `Philox.state` costs microseconds. So for a block of elements `StepGenerator.streams` writes the words into
the C struct of the bit generator. NumPy doesn't promise the struct's layout, so each `StepGenerator` first makes a test
write, and reads the public `state`. If that doesn't show the write, it assigns `state` for each element instead.

*Keys of JAX* are made on the host from 64-bit seeds, and don't depend on JAX's configuration. `jax.random.key(seed)`
does: it drops the upper half of the seed unless 64-bit numbers are enabled, so among millions of elements some would
share a key; and it uses the default algorithm, which the user may have changed. So `jax_keys` passes the two halves of
the seed as the key data of "threefry2x32". The first key imports JAX; the description of a dataset doesn't need it.

*Global generators* are those of `random`, NumPy and torch. `seeded_globals` seeds them for one call of a function, and
restores their states afterwards.
"""

import collections.abc
import contextlib
import ctypes
import functools
import importlib
import os
import random
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock._graph._coordinates import SeedPosition, SeedPositions
from penstock._seeds import MASK, derive
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock._graph._spawning import StreamSeeds

_WORDS: Final = 4
_COUNTER_BYTES: Final = 8 * _WORDS
_JAX_ALGORITHM: Final = "threefry2x32"
_JAX_VARIABLE: Final = "JAX_PLATFORMS"


class StepGenerator:
    """A `Generator` that is set to the stream of one element after the other. One thread at a time may use it."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[int, int]] = {}

    # Made on first use, because NumPy loads its generators only then, and many datasets draw no random numbers.

    @functools.cached_property
    def bits(self) -> "np.random.Philox":
        """The bits of the generator. A generator that a function spawns gets seeds from them."""
        seeds: StreamSeeds = importlib.import_module("penstock._graph._spawning").StreamSeeds()
        bits = np.random.Philox(cast("Any", seeds))
        own = weakref.ref(self)
        seeds.bits = lambda: None if (generator := own()) is None else generator.bits
        return bits

    @functools.cached_property
    def _generator(self) -> "np.random.Generator":
        return np.random.Generator(self.bits)

    @functools.cached_property
    def _struct(self) -> "_PhiloxStruct | None":
        """The C struct of the bit generator; None if it has an unexpected layout."""
        struct = _PhiloxStruct(self.bits)
        return struct if struct.is_as_expected(self.bits) else None

    def at(self, seed: int, position: SeedPosition) -> "np.random.Generator":
        """Return the generator, set to the stream of a step's seed and an element's position, until it is set again."""
        epoch, place, ordinal = position
        self.bits.state = philox_state(self._key(seed), (0, ordinal, place, epoch))
        return self._generator

    def streams(self, seed: int, positions: SeedPositions) -> "Iterator[np.random.Generator]":
        """Yield the generator once for each element of a block, set to the element's stream.

        The generator draws the same numbers as that of `at`, and setting it takes a fraction of the time.
        """
        struct = self._struct
        if struct is None:
            for position in zip(*(part.tolist() for part in positions), strict=True):
                yield self.at(seed, SeedPosition(*position))
            return
        counters = np.zeros((len(positions.positions), _WORDS), np.int64)
        counters[:, 1] = positions.ordinals
        counters[:, 2] = positions.positions
        counters[:, 3] = positions.epochs
        words = counters.tobytes()
        generator, store = self._generator, struct.store_counter
        self.bits.state = philox_state(self._key(seed), (0, 0, 0, 0))
        for start in range(0, len(words), _COUNTER_BYTES):
            store(words[start : start + _COUNTER_BYTES])
            yield generator

    def _key(self, seed: int) -> tuple[int, int]:
        key = self._keys.get(seed)
        if key is None:
            key = self._keys[seed] = (seed & MASK, derive(seed, "key"))
        return key


def philox_state(key: tuple[int, int], counter: tuple[int, int, int, int]) -> Any:  # noqa: ANN401 - NumPy types the state in a private way
    """Return the public state of a Philox bit generator that has drawn nothing yet."""
    return {
        "bit_generator": "Philox",
        "state": {"counter": np.array(counter, np.uint64), "key": np.array(key, np.uint64)},
        "buffer": np.zeros(_WORDS, np.uint64),
        "buffer_pos": _WORDS,
        "has_uint32": 0,
        "uinteger": 0,
    }


class _PhiloxFields(ctypes.Structure):
    _fields_ = (
        ("counter", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("buffer_position", ctypes.c_int),
        ("buffer", ctypes.c_uint64 * _WORDS),
        ("has_uint32", ctypes.c_int),
        ("uinteger", ctypes.c_uint32),
    )


class _PhiloxStruct:
    """The C struct of a Philox bit generator: its counter, and its buffer of numbers that were drawn ahead."""

    def __init__(self, bits: "np.random.Philox") -> None:
        address = cast("int", bits.ctypes.state_address)
        fields = _PhiloxFields.from_address(address)
        start, end = _PhiloxFields.buffer_position.offset, ctypes.sizeof(_PhiloxFields)
        self._bits = bits  # owns the memory
        self._counter = _bytes_at(fields.counter or 0, _COUNTER_BYTES)
        self._drawn = _bytes_at(address + start, end - start)
        spent = _PhiloxFields(buffer_position=_WORDS)  # a buffer without unused numbers
        self._spent = bytes(spent)[start:]

    def store_counter(self, words: bytes) -> None:
        """Set the counter to four 64-bit words, and discard the numbers that were drawn ahead."""
        self._counter[:] = words
        self._drawn[:] = self._spent

    def is_as_expected(self, bits: "np.random.Philox") -> bool:
        """Return whether the public state shows what `store_counter` wrote, so the layout is the expected one."""
        key, counter = (11, 12), (13, 14, 15, 16)
        words = np.array(counter, np.uint64).tobytes()
        bits.state = philox_state(key, counter)
        if bytes(self._counter) != words or bytes(self._drawn) != self._spent:
            return False
        expected = _comparable(bits.state)
        bits.state = philox_state(key, (0, 0, 0, 0))
        bits.random_raw(3)  # leaves a partly used buffer behind
        self.store_counter(words)
        return _comparable(bits.state) == expected


def _bytes_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")


def _comparable(state: Any) -> list[Any]:  # noqa: ANN401 - NumPy types the state as a loose dictionary
    fields = [state["state"]["counter"], state["state"]["key"], state["buffer"]]
    return [*(field.tolist() for field in fields), *(state[key] for key in ("buffer_pos", "has_uint32", "uinteger"))]


@contextlib.contextmanager
def kept_globals() -> collections.abc.Generator[None, None, None]:
    """Restore the states of `random`, NumPy's global generator and torch's at the end, of each that is loaded."""
    torch: Any = sys.modules.get("torch")  # a program that hasn't loaded torch doesn't draw from it
    python_state = random.getstate()
    numpy_state = np.random.get_state() if "numpy.random" in sys.modules else None
    torch_state = torch.get_rng_state() if hasattr(torch, "get_rng_state") else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy_state is not None:
            np.random.set_state(numpy_state)
        if torch_state is not None:
            torch.set_rng_state(torch_state)


@contextlib.contextmanager
def seeded_globals(seed: int) -> collections.abc.Generator[None, None, None]:
    """Seed `random`, NumPy's global generator and, if torch is loaded, torch's; restore their states afterwards.

    Args:
        seed: 64 bits; NumPy's legacy generator takes the lower 32.
    """
    torch: Any = sys.modules.get("torch")
    seed_numpy = np.random.seed  # this loads the module, so its state is restored, too
    with kept_globals():
        random.seed(seed)
        seed_numpy(seed & 0xFFFFFFFF)
        if torch is not None:
            # torch.manual_seed would also set the generators of the trainer's GPUs, which are not restored.
            torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        yield


def jax_keys(seeds: NDArray[np.uint64]) -> list[Any]:
    """Return a key of `jax.random` for each seed."""
    jax = importlib.import_module("jax")
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)
    return list(jax.random.wrap_key_data(jax.device_put(words, _host()), impl=_JAX_ALGORITHM))


def jax_key(seed: int) -> object:
    """Return the key of one seed."""
    return jax_keys(np.array([seed], np.uint64))[0]


@functools.cache
def _host() -> object:
    """Return JAX's device of the host: arrays that are computed from a key on it stay on the host."""
    jax = importlib.import_module("jax")
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise UsageError(
            f'rng="jax" computes on the host, and {_JAX_VARIABLE} leaves it out ({error}). Add "cpu", as in "cuda,cpu".'
        ) from error


def leave_accelerators() -> None:
    """Restrict JAX to the host in a worker process, because JAX would reserve most of an accelerator's memory."""
    os.environ[_JAX_VARIABLE] = "cpu"
    config: Any = getattr(sys.modules.get("jax"), "config", None)  # a loaded JAX has read the variable already
    if config is not None:
        config.update("jax_platforms", "cpu")

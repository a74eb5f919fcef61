"""The functions, samplers and sources of the golden datasets.

A dataset's fingerprint covers the byte code and the constants of its functions, docstrings included. So any edit of a
definition in this module changes recorded fingerprints: add new definitions, and leave the present ones as they are.
File paths, line numbers, comments, annotations and the names of variables don't count. The byte code of a function
differs between versions of Python; `Scale` and `Stretch` have a `fingerprint` method instead, which does not.

Random functions draw by methods whose values NumPy and Python keep stable: raw bits and `random()`.
"""

import random  # noqa: TID251 - a step seeds its global generator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import penstock as ps

TABLE = {"odd": 3, "even": 10}


def double(number: Any) -> Any:
    """Return twice a number or an array."""
    return number * 2


def half(number: int) -> dict[str, Any]:
    """Return a number, its half, its text and its bytes."""
    return {"number": number, "half": number / 2, "text": str(number), "raw": str(number).encode()}


def weighed(number: int) -> int:
    """Return a number plus a value of a table of this module."""
    return number + TABLE["odd" if number % 2 else "even"]


def scaled(number: int, factor: int, shift: int = 0) -> int:
    """Return a number times a factor, plus a shift."""
    return number * factor + shift


def document(number: int) -> Any:
    """Return one to five equal tokens, as int32."""
    return np.full(1 + number * 7 % 5, number, np.int32)


def pair(number: int) -> dict[str, Any]:
    """Return a document of inputs and targets, which differ in length, and its name."""
    return {
        "inputs": np.full(1 + number * 7 % 5, number, np.int64),
        "targets": np.full(1 + number * 5 % 3, number / 4, np.float32),
        "name": f"document {number}",
    }


def tokens_of(number: int) -> dict[str, Any]:
    """Return a dict with one to five tokens."""
    return {"tokens": np.full(1 + number * 7 % 5, number, np.int64)}


def episode(number: int) -> dict[str, Any]:
    """Return an episode of two to five frames."""
    return {"state": np.arange(2 + number % 4) + 10 * number, "reward": np.full(2 + number % 4, number / 8)}


def draws(element: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Return an element with raw bits and floats of its generator."""
    bits = [int(rng.bit_generator.random_raw()) for _ in range(2)]
    return {"element": element, "bits": np.array(bits, np.uint64), "noise": rng.random()}


def global_draws(element: Any) -> dict[str, Any]:
    """Return an element with draws of the global generators of Python and NumPy."""
    return {"element": element, "python": random.random(), "numpy": float(np.random.random_sample())}  # noqa: NPY002 - seeded by the step


def with_seed(element: Any, seed: int) -> dict[str, Any]:
    """Return an element with the seed that was derived for it."""
    return {"element": element, "seed": np.uint64(seed)}


def with_origin(element: Any, origin: ps.Origin) -> dict[str, Any]:
    """Return an element with its origin."""
    return {
        "element": element,
        "epoch": origin.epoch,
        "position": origin.position,
        "key": origin.key,
        "seed": np.uint64(origin.seed),
        "ordinal": origin.ordinal,
        "component": origin.component,
    }


def is_kept(number: int) -> bool:
    """Return whether a number is kept: two of three are."""
    return number * 7 % 3 != 0


def has_many(element: dict[str, Any]) -> bool:
    """Return whether a dict has more than one token."""
    return len(element["tokens"]) > 1


def fails_for_fifths(number: int) -> int:
    """Return the number, or raise for every fifth one."""
    if number % 5 == 3:
        raise ValueError("corrupt")
    return number


def copies(number: int) -> list[int]:
    """Return none to three numbers made of one."""
    return [number * 10 + copy for copy in range(number % 4)]


def total(rows: list[Any]) -> dict[str, Any]:
    """Merge rows into their sum and their number."""
    return {"sum": np.asarray(rows).sum(axis=0), "rows": np.array([len(rows)], np.int64)}


def size_of(tokens: Any) -> int:
    """Return the number of tokens."""
    return len(tokens)


def weight_of(number: int) -> int:
    """Return how much a number counts, from 0 to 3."""
    return number % 4


def numbers_from_20() -> Iterator[int]:
    """Yield 15 numbers."""
    return iter(range(20, 35))


def make_doubler() -> Any:
    """Return a function for one worker."""
    return double


@dataclass(frozen=True)
class Power:
    """Raises numbers to a power, by a method."""

    exponent: int

    def of(self, number: int) -> Any:
        """Return the power of a number."""
        return number**self.exponent


class Scale:
    """A function that says itself what identifies it: a factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: Any) -> Any:
        """Return a number times the factor."""
        return number * self.factor

    def fingerprint(self) -> str:
        """Return what identifies the function, in any version of Python."""
        return f"scale {self.factor}"


class Backwards:
    """A sampler without `block` and without `fingerprint`: the elements from the last one to the first."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return which element is at a position."""
        return epoch, self.length - 1 - position


class Stretch:
    """A sampler with `block` and `fingerprint`: each element twice, turned by the number of the epoch."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length * 2

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return which element is at a position."""
        return epoch, (position // 2 + epoch) % self.length

    def block(self, epochs: Any, positions: Any) -> tuple[Any, Any]:
        """Return which elements are at some positions."""
        return epochs, (positions // 2 + epochs) % self.length

    def fingerprint(self) -> str:
        """Return what identifies the sampler."""
        return f"stretch {self.length}"


class Squares:
    """A source with `read` and a fingerprint: the squares of the keys, as arrays of two."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        return np.array([key, key**2], np.int64)

    def read(self, keys: Sequence[int]) -> list[Any]:
        """Return the records of some keys."""
        return [self[int(key)] for key in keys]

    def fingerprint(self) -> str:
        """Return what identifies the source."""
        return f"squares {self.length}"


class TorchLike:
    """A map-style dataset as torch's users write it: `__getitems__`, and nothing that identifies it."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, key: int) -> tuple[int, float]:
        return key, key / 2

    def __getitems__(self, keys: Sequence[int]) -> list[tuple[int, float]]:
        """Return the records of some keys."""
        return [self[key] for key in keys]


class Served:
    """An async source, such as the client of a server."""

    def __len__(self) -> int:
        return 19

    async def read(self, keys: Any) -> list[Any]:
        """Return the records of some keys."""
        return [{"key": int(key), "cube": int(key) ** 3} for key in keys]

    def fingerprint(self) -> str:
        """Return what identifies the source."""
        return "served 19"


class Counter:
    """A stream with a state of its own: integers up to a stop."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while self.next < self.stop:
            self.next += 1
            yield self.next - 1
        self.next = 0

    def get_state(self) -> dict[str, int]:
        """Return which integer comes next."""
        return {"next": self.next}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue from a state."""
        self.next = state["next"]


class PerEpoch:
    """A stream that depends on the number of the epoch, with torch's names for its state."""

    def __init__(self) -> None:
        self.epoch = 0
        self.next = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose what the next pass gives."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        while self.next < 13:
            self.next += 1
            yield 100 * self.epoch + self.next - 1
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        """Return where the stream is."""
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state."""
        self.epoch, self.next = state["epoch"], state["next"]

    def fingerprint(self) -> str:
        """Return what identifies the stream."""
        return "per epoch 13"


def seed_number(number: int, seed: int) -> int:
    """Return a number of at most 63 bits, made of the seed that was derived for the element."""
    return (seed >> 1) ^ number


def is_dense(batch: Any) -> bool:
    """Return whether a batch of numbers is kept, by its first row."""
    return int(batch[0]) % 4 != 1


class Keeps:
    """A predicate that says itself what identifies it: it keeps the numbers that a divisor leaves some rest of."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor

    def __call__(self, number: int) -> bool:
        """Return whether a number is kept."""
        return number % self.divisor != 0

    def fingerprint(self) -> str:
        """Return what identifies the predicate, in any version of Python."""
        return f"keeps {self.divisor}"


class Runs:
    """Joins numbers up to a multiple of three; it says how many it holds."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    @property
    def held(self) -> int:
        """Return how many numbers wait."""
        return len(self.waiting)

    def add(self, element: int) -> list[dict[str, Any]]:
        """Return the run that a number completes, and the number itself."""
        self.waiting.append(element)
        return [*self.flush(), {"sum": element, "count": 1}] if element % 3 == 0 else []

    def flush(self) -> list[dict[str, Any]]:
        """Return the run that waits."""
        run, self.waiting = self.waiting, []
        return [{"sum": sum(run), "count": len(run)}]


class Total:
    """Gives the sum of all numbers so far, at every second one; it needs all of them."""

    def __init__(self) -> None:
        self.sum = 0
        self.count = 0

    def add(self, element: int) -> list[int]:
        """Return the sum, at every second number."""
        self.sum += element
        self.count += 1
        return [] if self.count % 2 else [self.sum]

    def flush(self) -> list[int]:
        """Return the sum, and how many numbers there were."""
        return [self.sum, self.count]


def ascending(number: int) -> Any:
    """Return a document of two to seven tokens, of which no two are equal."""
    return np.arange(2 + number * 5 % 6, dtype=np.int64) + 10 * number

"""Functions of datasets that other processes import; this module imports little, so that they start soon."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps

BAD = 17


def row(number: int) -> dict[str, Any]:
    """Return an element that takes a moment."""
    return {"number": number, "squares": np.arange(number, number + 100) ** 2}


def is_kept(element: Any) -> bool:
    """Keep four of five elements."""
    return bool(element["number"] % 5 != 0)


def counted(folder: str, number: int) -> int:
    """Return a number once a pipe has a writer; note each call in a file."""
    with Path(folder, "calls").open("ab") as calls:
        calls.write(bytes([number]))
    os.close(os.open(f"{folder}/gate", os.O_RDONLY))
    return number


def marked(number: int, origin: ps.Origin) -> dict[str, int]:
    """Return a row with the position of its element."""
    return {"position": origin.position, "number": int(number)}


def thirds(row: Any) -> bool:
    """Keep two of three rows."""
    return int(np.asarray(row["number"]).flat[0]) % 3 != 1


def copies(row: Any) -> list[Any]:
    """Return a row up to three times."""
    return [row] * (row["number"] % 4)


def fails_at_some(row: Any) -> Any:
    """Return a row; fail at some."""
    if row["number"] % 5 == 2:
        raise ValueError("corrupt")
    return row


def inner(row: Any) -> Any:
    """Return a row without its seed."""
    return {**row["element"], "seed": row["seed"]}


def drawn(row: Any, rng: np.random.Generator) -> Any:
    """Return a row with a random draw."""
    return {**row, "draw": rng.random()}


def decode(number: int) -> int:
    """Return an even number; raise at others."""
    if number % 2:
        raise ValueError(f"{number} is broken")
    return number


def refuse(number: int) -> int:
    """Raise at every number."""
    raise ValueError(f"{number} is broken")


def decode_or_end(number: int) -> int:
    """Return a number; raise another error at one of them."""
    if number == 14:
        raise LookupError("no such record")
    return number


def third(number: int) -> float:
    """Return a third of 1, and 1 more if NumPy refuses to divide by zero."""
    refused = 0
    try:
        np.divide(number, 0)
    except FloatingPointError:
        refused = 1
    return float(Decimal(1) / 3 + refused)


def fails_at_four(number: int) -> int:
    """Return the number; raise at 4."""
    if number == 4:
        raise ValueError("damaged")
    return number


def large(number: int) -> Any:
    """Return a row in leased memory, not a copy."""
    return np.full(1 << 15, number, np.int64)


class Waits:
    """A function that waits at the first element until the test opens a pipe for writing."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = str(pipe)

    def __call__(self, number: int) -> int:
        """Return the element."""
        if number == 0:
            open(self._pipe, encoding="ascii").close()
        return number


def halves(number: int) -> dict[str, Any]:
    """Return a row of two leaves."""
    return {"number": number, "half": np.full(3, number / 2, np.float32)}


def by_one(number: int) -> dict[int, int]:
    """Return a row whose key is a number."""
    return {1: number}


def by_true(number: int) -> dict[bool, int]:
    """Return a row whose key equals that number, but is a bool."""
    return {True: number}


def as_list(rows: list[Any]) -> list[Any]:
    """Merge rows by a function of the user's."""
    return rows


class DecodeError(Exception):
    """A user's error that can't be made from a text alone."""

    def __init__(self, name: str, offset: int) -> None:
        super().__init__(name, offset)
        self.offset = offset


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception that refuses to have attributes set."""


def frozen(number: int) -> None:
    """Raise such an exception for one number."""
    if number == BAD:
        raise FrozenError


def bad(number: int) -> None:
    """Raise for the bad number."""
    if number == BAD:
        raise DecodeError("x.png", offset=number * 2)


def stop(number: int) -> None:
    """Raise StopIteration at the bad number; it would end a plain loop silently."""
    if number == BAD:
        raise StopIteration


class Checked:
    """Functions that call another one with each number, which may raise."""

    def __init__(self, check: Callable[[int], None]) -> None:
        self.check = check

    def map(self, number: int) -> int:
        """Return the number."""
        self.check(number)
        return number

    def map_randomly(self, number: int, rng: np.random.Generator) -> int:
        """Return the number."""
        rng.random()
        return self.map(number)

    def map_with_origin(self, number: int, origin: ps.Origin) -> int:
        """Return the number."""
        assert origin.key == number
        return self.map(number)

    def generate(self, number: int) -> Any:
        """Yield the number."""
        yield self.map(number)

    def keep(self, number: int) -> bool:
        """Keep the number."""
        return self.map(number) >= 0

    def batch(self, rows: Any) -> NDArray[Any]:
        """Return rows as an array."""
        return np.array([self.map(int(number)) for number in rows])


class CheckedSource(Checked):
    """A source of numbers."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> int:
        return self.map(key)


class CheckedBlocks(CheckedSource):
    """The same source, read in blocks or straight into a batch."""

    def read(self, keys: Any) -> list[int]:
        """Return the records."""
        return [self.map(int(key)) for key in keys]

    def read_into(self, keys: Any, out: Any) -> None:
        """Write the records."""
        out[:] = self.read(keys)


class ReplacingSource:
    """A source whose `read_into` replaces an array of the batch instead of filling it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"number": np.full(2, key)}

    def read_into(self, keys: Any, out: Any) -> None:
        """Replace the array."""
        out["number"] = np.stack([keys, keys], 1)


class NestedSource(ReplacingSource):
    """The same with the array in a dict."""

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"number": super().__getitem__(key)}

    def read_into(self, keys: Any, out: Any) -> None:
        """Replace the array."""
        super().read_into(keys, out["number"])


class SortingSource(ReplacingSource):
    """A source whose `read_into` sorts the keys in their place."""

    def read_into(self, keys: Any, out: Any) -> None:
        """Fill the array."""
        keys.sort()
        out["number"][:] = keys[:, None]


def ragged(number: int) -> NDArray[np.float64]:
    """Return an array, one of which is longer."""
    return np.zeros(2 if number == 6 else 1)


def divide(number: int) -> int:
    """Return the number; fail at 7."""
    return number // (number - 7) * 0 + number


class AtHome:
    """An element that ends the program where another process loads it, if it has the bad number."""

    def __init__(self, number: int) -> None:
        self.number = int(number)

    def __reduce__(self) -> Any:
        return _at_home, (self.number, os.getpid())


def _at_home(number: int, process: int) -> AtHome:
    if number == BAD and process != os.getpid():
        raise SystemExit("not at home")
    return AtHome(number)


def fails_at_nine(value: Any) -> Any:
    """Raise an error for what contains the number 9."""
    if np.any(np.asarray(value) == 9):
        raise KeyError("nine")
    return value


def fails_at_nine_in_a_group(value: Any) -> Any:
    """Raise a group for what contains the number 9, of an error that was raised itself."""
    errors: list[Exception] = []
    try:
        return fails_at_nine(value)
    except KeyError as error:
        errors.append(error)
    try:
        raise ExceptionGroup("of functions", [ExceptionGroup("of one", errors)])
    finally:
        errors.clear()


def crashes_at_nine(value: Any) -> Any:
    """End the worker process at what contains the number 9."""
    if np.any(np.asarray(value) == 9):
        os._exit(3)
    return value


def refuse_worker(worker: int) -> None:
    """Fail as `worker_init`."""
    raise RuntimeError(f"worker {worker} can't be prepared")


def refuses_most(number: int) -> int:
    """Raise at seven numbers of eight."""
    if number % 8:
        raise KeyError(number)
    return number


def document(number: int) -> Any:
    """Return a document; the lengths differ."""
    return np.full(1 + number * 37 % 90, number)


def beginning(sequence: Any) -> Any:
    """Return a document, from a sequence."""
    return sequence["tokens"][: 10 + int(sequence["tokens"][0]) % 60]


def hangs_at_five(element: int) -> int:
    """Return the element, but hang at 5; the process is killed at the end."""
    if element == 5:
        threading.Event().wait()
    return element


def slow(element: Any) -> Any:
    """Return the element after a short wait."""
    threading.Event().wait(0.004)
    return element

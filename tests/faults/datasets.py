"""Datasets whose functions do harm once at each trap: the first process or thread that reaches a trap springs it.

A trap is a file, named by a number and with the kind of harm in it. The thread that unlinks it does the harm, so the
harm is done once; after that the function is as pure as the definition requires.
"""

import collections
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from tests.equivalence.joins import Counter
from tests.faults.chance import Chance

INJECTED: Final = "injected"
SPACING: Final = 4  # traps are at multiples of it, so most rows look for none


class InjectedError(Exception):
    """The error of a trap."""


class UnsendableError(Exception):
    """An error that can't be pickled."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a connection")


_ERRORS: Final[dict[str, type[BaseException]]] = {
    "raise": InjectedError,
    "memory": MemoryError,
    "unsendable": UnsendableError,
    "sys.exit": SystemExit,
}
TRAPS_ANYWHERE: Final = ("raise", "memory")
TRAPS_OF_PROCESSES: Final = ("unsendable", "sys.exit", "os._exit", "segv")
CRASHING_TRAPS: Final = ("os._exit", "segv")


class Traps:
    """The traps of a round, files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._laid: dict[int, str] = {}

    def lay(self, number: int, kind: str) -> bool:
        """Lay a trap; return False if there is one."""
        number -= number % SPACING
        if number in self._laid:
            return False
        made = self._folder / "made"
        made.write_text(kind)
        made.rename(self._folder / str(number))
        self._laid[number] = kind
        return True

    def waiting(self, kinds: Collection[str]) -> int:
        """Return the number of traps of some kinds that were laid, and not counted as sprung."""
        return sum(kind in kinds for kind in self._laid.values())

    def sprung(self, *, remove: bool = False) -> collections.Counter[str]:
        """Return the number of traps of each kind that were sprung since the last call; `remove` removes the others."""
        gone = {number: kind for number, kind in self._laid.items() if not (self._folder / str(number)).exists()}
        for number in list(self._laid) if remove else gone:
            (self._folder / str(number)).unlink(missing_ok=True)
            del self._laid[number]
        return collections.Counter(gone.values())


def spring(folder: str, number: int) -> None:
    """Do the harm of the trap at a number, if there is one and this process may do its harm."""
    if number % SPACING:
        return
    path = f"{folder}/{number}"
    try:
        with open(path, encoding="ascii") as file:
            kind = file.read()
        if kind in TRAPS_OF_PROCESSES and multiprocessing.parent_process() is None:
            return
        os.unlink(path)
    except FileNotFoundError:  # there is none, or another thread was first
        return
    if kind in _ERRORS:
        raise _ERRORS[kind](INJECTED)
    if kind == "os._exit":
        os._exit(3)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def same(folder: str, number: int) -> int:
    """Return the number."""
    spring(folder, number)
    return number


def row(folder: str, size: int, number: int) -> dict[str, Any]:
    """Return arrays of a number."""
    spring(folder, number)
    return {"number": number, "image": np.full(size, number % 251, np.uint8)}


def named(folder: str, number: int) -> dict[str, Any]:
    """Return a row with text in it."""
    spring(folder, number)
    return {"number": number, "name": f"record {number}", "half": number / 2}


def merged(folder: str, rows: list[int]) -> dict[str, Any]:
    """Merge rows into a value that is no stack."""
    spring(folder, max(rows))
    return {"rows": rows, "total": np.array([sum(rows)])}


def raised_by_one(folder: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with one added to every number."""
    spring(folder, int(batch["number"].max()))
    return {key: value + 1 for key, value in batch.items()}


def written(folder: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Change a batch in place; the harm comes after the write."""
    batch["image"] += 1
    spring(folder, int(batch["number"].max()))
    return batch


def written_row(folder: str, row: dict[str, Any]) -> dict[str, Any]:
    """Change a row in place; the harm comes after the write."""
    row["image"] += 1
    spring(folder, row["number"])
    return row


def written_rows(folder: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Change rows in place, and merge them; the harm comes after the writes."""
    for each in rows:
        each["image"] += 1
    spring(folder, max(each["number"] for each in rows))
    return {"images": [each["image"] for each in rows], "numbers": np.array([each["number"] for each in rows])}


def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a batch with random numbers."""
    return {**batch, "noise": rng.random(3)}


def refuses_some(number: int) -> int:
    """Fail at every seventh number, always."""
    if number % 7 == 3:
        raise ValueError("corrupt")
    return number


def is_kept(row: dict[str, Any]) -> bool:
    """Keep three of four, evenly spread."""
    return int(row["number"]) * 2_654_435_761 % 2**32 >= 2**30


def document(folder: str, number: int) -> dict[str, NDArray[np.int32]]:
    """Return a document of a few tokens."""
    spring(folder, number)
    return {"tokens": np.full(1 + number % 13, number, np.int32)}


def is_long(row: dict[str, Any]) -> bool:
    """Keep documents of more than two tokens."""
    return len(row["tokens"]) > 2


def _above_folds(folder: str, chance: Chance, numbers: ps.Dataset[int]) -> ps.Dataset[Any]:
    rows = numbers.map(partial(row, folder, chance.one_of([16, 8_192])), name="row").filter(is_kept)
    if chance.is_one_in(3):
        return rows.batch(chance.between(1, 12), merge=partial(written_rows, folder))
    return rows.batch(chance.between(1, 12)).map(partial(written, folder), name="written").random_map(noisy)


def _rows_above_folds(folder: str, chance: Chance, numbers: ps.Dataset[int]) -> ps.Dataset[Any]:
    if chance.is_one_in(2):
        numbers = ps.stream(partial(Counter, chance.between(60, MAX_ROWS)))
    made = numbers.map(partial(row, folder, chance.one_of([16, 8_192])), name="row")
    rows = made.window_shuffle(chance.between(2, 40)).map(partial(written_row, folder), name="written")
    return rows.batch(chance.between(1, 12), remainder=chance.one_of(["keep", "drop"]))


class Pieces:
    """A combiner of consecutive rows whose numbers sum to 200, into two rows; it holds the memory of all rows."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []

    @property
    def held(self) -> int:
        """The number of waiting rows."""
        return len(self.waiting)

    def add(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the two rows when this row completes them."""
        self.waiting.append(element)
        return self.flush() if sum(int(each["number"]) for each in self.waiting) >= 200 else []

    def flush(self) -> list[dict[str, Any]]:
        """Return the first and the last waiting row, with the number of rows."""
        rows, self.waiting = self.waiting, []
        return [{**rows[0], "rows": len(rows)}, {**rows[-1], "rows": -len(rows)}]


def _combined(folder: str, chance: Chance, numbers: ps.Dataset[int]) -> ps.Dataset[Any]:
    rows = numbers.map(partial(row, folder, chance.one_of([16, 8_192])), name="row").filter(is_kept)
    combined = rows.combine(Pieces).random_map(noisy)
    return combined.batch(chance.between(1, 6))


def _mixed(folder: str, chance: Chance, numbers: ps.Dataset[int]) -> ps.Dataset[Any]:
    others = ps.range(10_000, 10_000 + 4 * chance.between(10, 40)).shuffle()
    weights = {"numbers": chance.between(1, 4), "others": chance.between(1, 3)}
    mixture = ps.mix({"numbers": numbers, "others": others}, weights, stop="all", seed=chance.between(0, 1 << 32))
    return mixture.map(partial(row, folder, 32), name="row").batch(chance.between(1, 12))


_MAKERS: Final[dict[str, Callable[[str, Chance, ps.Dataset[int]], ps.Dataset[Any]]]] = {
    "stacked": lambda folder, chance, numbers: numbers.map(
        partial(row, folder, chance.one_of([8, 64, 4_096])), name="row"
    ).batch(chance.between(1, 12)),
    "large": lambda folder, chance, numbers: numbers.map(partial(row, folder, 300_000), name="row").batch(
        chance.between(4, 12)
    ),
    "merged": lambda folder, chance, numbers: numbers.map(partial(same, folder), name="same").batch(
        chance.between(1, 12), merge=partial(merged, folder)
    ),
    "above": lambda folder, chance, numbers: (
        numbers.map(partial(row, folder, 16), name="row")
        .batch(chance.between(1, 12))
        .map(partial(chance.one_of([raised_by_one, written]), folder), name="changed")
        .random_map(noisy)
    ),
    "strings": lambda folder, chance, numbers: numbers.map(partial(named, folder), name="named").batch(
        chance.between(1, 12)
    ),
    # Traps are above the substitutes: an error while a substitute is computed makes the step take another one.
    "substituted": lambda folder, chance, numbers: (
        numbers.map(refuses_some, on_error=ps.Substitute(attempts=64))
        .map(partial(same, folder), name="same")
        .batch(chance.between(1, 12))
    ),
    "filtered": lambda folder, chance, numbers: (
        numbers.map(partial(row, folder, 16), name="row").filter(is_kept).batch(chance.between(1, 12))
    ),
    "above folds": _above_folds,
    "rows above folds": _rows_above_folds,
    "windowed": lambda folder, chance, numbers: (
        numbers.map(partial(named, folder), name="named")
        .filter(is_kept)
        .window_shuffle(chance.between(2, 40))
        .batch(chance.between(1, 12))
    ),
    "packed": lambda folder, chance, numbers: (
        numbers.map(partial(document, folder), name="document")
        .filter(is_long)
        .pack(16, how=chance.one_of(["best_fit", "split"]))
        .batch(chance.between(1, 6))
    ),
    "combined": _combined,
    "mixed": _mixed,
}
TRAPPED_KINDS: Final = tuple(_MAKERS)
MAX_ROWS: Final = 320


def dataset_of(kind: str, folder: Path, chance: Chance) -> ps.Dataset[Any]:
    """Return a dataset of a kind, of random size and order, whose functions look for traps or take time."""
    if kind not in _MAKERS:
        from tests.faults.work import working_dataset  # noqa: PLC0415 - importing Hypothesis takes long in each process

        return working_dataset(kind, chance)
    numbers = ps.range(chance.between(60, MAX_ROWS), seed=chance.between(0, 1 << 32))
    return _MAKERS[kind](str(folder), chance, numbers if chance.is_one_in(4) else numbers.shuffle())

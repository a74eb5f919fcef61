"""Functions for worker processes, which import them by name."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import penstock as ps
from tests.equivalence.kinds import is_dict, is_list_or_tuple

DEADLY = 37
LATE = 3_000


def row(number: int) -> dict[str, Any]:
    """Return a row of arrays."""
    return {"number": number, "image": np.full((8, 8), number % 251, np.uint8)}


def large_row(number: int) -> NDArray[np.uint8]:
    """Return a row of which a batch stays in the loader's memory."""
    return np.full(100_000, number % 251, np.uint8)


def named_large_row(number: int) -> dict[str, Any]:
    """Return a row of which a batch stays in the loader's memory, with a leaf that is no array."""
    return {"image": large_row(number), "name": f"record {number}"}


TEXTS: tuple[Callable[[int], str | bytes], ...] = (
    lambda number: "" if number % 3 else "a",
    lambda number: "naïve Ж 漢 😀"[number % 5 :] * (number % 40),
    lambda number: f"\0{number}\0",
    lambda number: "x" * (number % 7) * 10_000,
    lambda number: "\ud800" if number % 5 == 0 else "a",  # not in UTF-8
    lambda number: np.str_(f"{number}\0"),
    lambda number: b"" if number % 2 else b"\xff\0" * number,
)


def texts(number: int) -> dict[str, Any]:
    """Return a number with texts of all kinds."""
    return {"number": number, **{f"{at}": text(number) for at, text in enumerate(TEXTS)}}


_SAME = tuple(f"label {number}" for number in range(3))


def labelled(number: int) -> dict[str, Any]:
    """Return one of three texts, and a number."""
    return {"label": _SAME[number % 3], "number": number}


def lists_of_texts(batch: dict[str, Any]) -> object:
    """Return texts of a batch in various containers, of which some hold a list twice."""
    words, others = batch["0"], batch["1"]
    first = int(batch["number"][0])
    kinds: list[object] = [
        {"words": words, "numbers": batch["number"]},
        (words, others),
        [words, batch["6"], None, 3],
        words,
        {"one": words, "other": words},
        {"words": words, "inside": (words, [others])},
        {"words": [*words, 3], "array": np.array([words], object)},
        {"none": [], "numbers": batch["number"]},
    ]
    return kinds[first // 16 % len(kinds)]


def long_text(number: int) -> dict[str, Any]:
    """Return a long text with a number."""
    return {"text": f"{number}".ljust(100_000), "number": number}


def slow(number: int) -> int:
    """Return the argument after a millisecond."""
    threading.Event().wait(0.001)
    return number


def halved(batch: NDArray[Any]) -> NDArray[Any]:
    """Return a merged batch that this function has changed."""
    return batch / 2


_kept: list[tuple[NDArray[Any], NDArray[Any]]] = []


def kept_and_halved(batch: NDArray[Any]) -> NDArray[Any]:
    """Halve a batch, and keep it for good; raise if one of the last that were kept has changed since."""
    _kept.append((batch, batch[:, 0].copy()))
    if not all(np.array_equal(kept[:, 0], before) for kept, before in _kept[-8:]):
        raise AssertionError("a batch that was kept has changed")
    return batch / 2


def process_of(number: int) -> dict[str, int]:
    """Return the process that computes a number, and the number; slowly, so that all processes get some."""
    threading.Event().wait(0.005)
    return {"number": number, "row_process": os.getpid()}


def private_bytes(record: dict[str, Any]) -> int:
    """Return the private memory of this process, after it has read a record."""
    assert record["x"].all()
    usage = psutil.Process().memory_full_info()
    return int(usage.uss)


def fails_at_multiples_of_ten(number: int) -> dict[str, int]:
    """Return the process that computes a number; raise for one number."""
    if number % 10 == 0:
        raise ValueError(f"no record {number}")
    return {"number": number, "row_process": os.getpid()}


def joined(rows: list[dict[str, int]]) -> dict[str, Any]:
    """Return the numbers of rows, and the processes that computed and merged them."""
    rows_by = sorted({row["row_process"] for row in rows})
    return {"numbers": [row["number"] for row in rows], "rows_by": rows_by, "merged_by": os.getpid()}


def marked(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with the process that changed it."""
    return {**batch, "marked_by": os.getpid()}


class LoggedMerge:
    """Writes its begin and its end to a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the rows, after a moment."""
        with open(self.path, "a", encoding="ascii") as file:
            print("begin", file=file, flush=True)
            threading.Event().wait(0.01)
            print("end", file=file, flush=True)
        return rows


def is_child() -> bool:
    """Return whether another process started this one."""
    return multiprocessing.parent_process() is not None


def kills_at(deadly: Container[int], number: int) -> int:
    """Crash at some numbers, in any process but the test's."""
    if number in deadly and is_child():
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kills_itself(number: int) -> int:
    """Crash at one number, in any process but the test's."""
    return kills_at((DEADLY,), number)


def batch_kills(batch: Any) -> Any:
    """Return a batch, or rows, or crash at one number in it."""
    for number in np.ravel(batch).tolist():
        kills_itself(number)
    return batch


def number_kills(record: dict[str, Any]) -> int:
    """Return the number of a record, or crash."""
    return kills_itself(int(record["number"]))


computed_here: list[int] = []  # of those that are deadly, by the consumer


def kills_or_tells(number: int, deadly: Container[int] = (DEADLY,)) -> int:
    """Crash at some numbers in a worker; in the consumer, record the call."""
    if number in deadly and not is_child():
        computed_here.append(number)
    return kills_at(deadly, number)


def broken_before(number: int) -> int:
    """Raise at the number before the crashing one."""
    if number == DEADLY - 1:
        raise LookupError("no such record")
    return number


prepared: list[int] = []  # the numbers of the workers that this process was prepared as; the consumer's is one more


def prepare(worker: int) -> None:
    """Mark this process as prepared."""
    prepared.append(worker)


def prepare_processes(worker: int) -> None:
    """Mark this process as prepared, if it is a worker."""
    if psutil.Process().name() != "penstock-worker":
        raise LookupError("not here")
    prepare(worker)


def prepared_row(number: int) -> NDArray[np.uint8]:
    """Return a large row, in a prepared process; raise for one number."""
    if not prepared:
        raise RuntimeError("nobody has prepared this process")
    if number == DEADLY:
        raise LookupError(f"no record {number}")
    return large_row(number)


def broken(number: int) -> int:
    """Raise at one number."""
    if number == DEADLY:
        raise LookupError(f"no record {number}")
    return number


class Unpicklable:
    """An object that can't be pickled."""

    def __call__(self, number: int) -> int:
        """Return the argument."""
        return number

    def __reduce__(self) -> str:
        raise TypeError("it holds a connection")


def same(number: int) -> int:
    """Return the argument."""
    return number


FINISHES: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {  # numbers in one batch
    "stacked": lambda numbers: numbers.batch(80),
    "merged": lambda numbers: numbers.batch(80, merge=list),
    "in order": lambda numbers: numbers.filter(is_any).batch(80),
}


def is_odd(number: int) -> bool:
    """Return whether a number is odd."""
    return number % 2 == 1


def computed(number: int) -> NDArray[np.int64]:
    """Compute for a millisecond without a pause; return worker, row, processor, begin and end in nanoseconds."""
    began, over = time.monotonic_ns(), time.thread_time_ns() + 1_000_000
    while time.thread_time_ns() < over:
        pass
    return _row(number, began)


def waited(number: int) -> NDArray[np.int64]:
    """Wait for a millisecond; return the same."""
    began = time.monotonic_ns()
    threading.Event().wait(0.001)
    return _row(number, began)


def _row(number: int, began: int) -> NDArray[np.int64]:
    return np.array([os.getpid(), min(os.sched_getaffinity(0)), began, time.monotonic_ns(), number])


def use_one_processor(worker: int) -> None:
    """Bind all workers to the same processor."""
    del worker
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def share_processors_out(worker: int) -> None:
    """Bind the workers to two processors in turn."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[worker % 2]})


class ChangesAndDies:
    """Changes its argument in place, and crashes once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, given: Any) -> Any:
        """Return the argument plus one; the first call crashes after the change."""
        rows: list[NDArray[Any]] = [*given] if is_list_or_tuple(given) else [given]
        for row in rows:
            row += 1
        if int(rows[0].flat[0]) > DEADLY:
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))  # by one alone
                os.kill(os.getpid(), signal.SIGKILL)
        return np.stack(rows) if is_list_or_tuple(given) else given


def is_any(row: object) -> bool:
    """Keep every row."""
    return row is not None


def process_of_batch(batch: Any) -> dict[str, Any]:
    """Return a batch and the process that has computed it, after a moment."""
    threading.Event().wait(0.01)
    return {"batch": batch, "by": os.getpid(), "thread": threading.current_thread().name}


def fails_at_deadly(batch: NDArray[Any]) -> NDArray[Any]:
    """Return a batch, changed in place; raise for the batch with one number."""
    batch *= 2
    if 2 * DEADLY in batch:
        raise ValueError(f"no batch with {DEADLY}")
    return batch


def fails_in_workers(batch: NDArray[Any]) -> dict[str, Any]:
    """Return a batch and the process that has computed it; in a worker, raise for one batch."""
    if LATE in batch and is_child():
        raise OSError("only here")
    return {"batch": batch, "by": os.getpid()}


def large_row_and_process(number: int) -> dict[str, Any]:
    """Return a large row, and the process that has computed it."""
    return {"row": large_row(number), "process": os.getpid()}


ELEMENTS: dict[str, Callable[[int], Any]] = {
    "arrays": lambda number: np.arange(number % 5, dtype=np.int16),
    "dicts": lambda number: {"x": np.arange(number % 5), "n": number, "y": np.full(2, number, np.float32)},
    "keys in turn": lambda number: {name: np.full(3, number) for name in ("xy" if number % 2 else "yx")},
    "dtypes in turn": lambda number: np.full(3, number, (np.int32, np.int64)[number % 2]),
    "axes in turn": lambda number: np.full((3,) * (1 + number % 2), number),
    "big-endian": lambda number: np.full(3, number, ">i4"),
    "texts": lambda number: np.full(3, str(number)),
    "no keys": lambda _: {},
    "one array twice": lambda number: dict.fromkeys("xy", np.arange(number % 5)),
}


def element_of(kind: str, number: int) -> Any:
    """Return an element of some kind."""
    return ELEMENTS[kind](number)


def written_to(element: Any) -> Any:
    """Write to the array of an element, or to its first one, if that has numbers; return the element."""
    array: Any = element.get("x") if is_dict(element) else element
    if array is not None and array.dtype.kind in "iuf":
        array += 1
    return element


HALVES: np.dtype[Any] = np.dtype((np.int32, {"low": (np.int16, 0), "high": (np.int16, 2)}))
BATCHES: list[Callable[[NDArray[Any]], Any]] = [
    lambda batch: [batch, batch],
    lambda batch: batch,
    lambda batch: {"inputs": batch[:-1], "targets": batch[1:]},
    lambda batch: {"targets": batch[1:], "inputs": batch[:-1]},
    lambda batch: (batch.astype(np.float32), np.tile(batch, (3, 1))[:, ::-1]),
    lambda batch: {"inputs": batch, "targets": batch},
    lambda batch: np.asfortranarray(np.tile(batch, (3, 1))),
    lambda batch: {"channels last": np.tile(batch, (2, 1, 3)).transpose(2, 0, 1), "one": batch[:1, None]},
    lambda batch: [np.tile(batch, (2, 1, 3)).transpose(0, 2, 1), ">i4"],
    lambda batch: {"transposed": np.tile(batch, (2, 1)).T if batch[0] % 8 else np.tile(batch, (2, 1)).T.copy()},
    lambda batch: np.arange(int(batch[0]) % 7),
    lambda batch: np.zeros((0, batch[0] % 7), np.complex64),
    lambda batch: {"sum": np.array(batch.sum()), "text": batch.astype(str)},
    lambda batch: np.frombuffer(batch.tobytes(), batch.dtype),  # read-only
    lambda batch: batch.astype(">i4"),
    lambda batch: {"rows": batch.tolist(), "none": None},
    lambda batch: batch > 3,
    lambda batch: batch.astype(_of_pickle(np.float32) if batch[0] % 8 else np.float32),
    lambda batch: [batch.astype(_of_pickle(np.int16)), batch.astype(np.dtype("i4", metadata={"turn": batch[0] % 8}))],
    lambda batch: {"halves": batch.astype(np.int32).view(HALVES) if batch[0] % 8 else batch.astype(np.int32)},
    lambda batch: {(np.str_ if batch[0] % 8 else str)("key"): batch, "another {}".format("key"): batch + 1},
]


def _of_pickle(dtype: Any) -> np.dtype[Any]:
    """Return a dtype from a pickle, which is an object of its own."""
    found: np.dtype[Any] = pickle.loads(pickle.dumps(np.dtype(dtype)))
    return found


def every_second(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return every second column of each array; between them are gaps."""
    return {name: array[:, ::2] for name, array in batch.items()}


def batch_of_a_kind(batch: NDArray[Any]) -> Any:
    """Return a batch of one of the kinds; a few in a row are of the same."""
    function = BATCHES[int(batch[0]) // 12 % len(BATCHES)]
    return function(batch)


DOCUMENTS: dict[str, Callable[[int], Any]] = {
    "arrays": lambda number: np.arange(number % 9, dtype=np.uint16) + number,
    "dicts": lambda number: {"x": np.arange(number % 9), "id": number, "tags": np.full(number % 3, number)},
}


def document_of(kind: str, number: int) -> Any:
    """Return a document of some kind."""
    return DOCUMENTS[kind](number)


def triples(document: Any) -> bool:
    """Keep most documents, and change each that is asked about."""
    tokens: NDArray[Any] = document["x"] if is_dict(document) else document
    tokens *= 3
    return len(tokens) != 5


LARGE = 300_000
_remembered: dict[int, NDArray[np.int32]] = {}


def _remembers(number: int) -> NDArray[np.int32]:
    if number % 3 not in _remembered:
        _remembered[number % 3] = np.full(LARGE, number % 3, np.int32)
    return _remembered[number % 3]


LARGE_ELEMENTS: dict[str, Callable[[int], Any]] = {
    "made": lambda number: np.full(LARGE, number, np.int32),
    "zeroes": lambda number: np.zeros(LARGE, np.int32) if number % 2 else np.ones(LARGE, np.int32),
    "with a label": lambda number: {
        "label": number,
        "image": np.full((LARGE // 100, 100), number),
        "text": str(number),
    },
    "after others": lambda number: np.cumsum(np.full(LARGE, number, np.int32) * 2, dtype=np.int32) + 1,
    "two": lambda number: (np.full(LARGE, number, np.int32), np.full(LARGE, -number, np.int32)),
    "in turn": lambda number: [np.full(LARGE, number, np.int32), np.full(LARGE, -number, np.int32)][:: (-1) ** number],
    "one twice": lambda number: [np.full(LARGE, number, np.int32)] * 2,
    "parts": lambda number: {"all": (whole := np.full(LARGE, number, np.int32)), "half": whole[::2]},
    "transposed": lambda number: np.full((LARGE // 100, 100), number, np.int32).T,
    "channels first": lambda number: np.full((LARGE // 100, 50, 2), number, np.int32).transpose(2, 0, 1),
    "sizes in turn": lambda number: np.full(LARGE + number % 3, number, np.int32),
    "read-only": lambda number: np.frombuffer(np.full(LARGE, number, np.int32).tobytes(), np.int32),
    "resized": lambda number: np.resize(np.arange(number + 1_000, dtype=np.int32), LARGE),
    "remembered": _remembers,
}


def huge(number: int) -> NDArray[np.uint8]:
    """Return an element of 16 MB."""
    return np.full(1 << 24, number, np.uint8)


def large_element(number: int) -> Any:
    """Return an element with large arrays; eight in a row are of one kind."""
    return [*LARGE_ELEMENTS.values()][number // 8](number % 8)


def fails_at_large(number: int) -> NDArray[np.int32]:
    """Return a large array; raise for one number, after making its array."""
    made = np.full(LARGE, number, np.int32)
    if number == DEADLY:
        raise ValueError(f"not {len(made)} times {DEADLY}")
    return made

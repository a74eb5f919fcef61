"""The datasets of `resume`, of every kind, with the number of elements that each holds open at a step.

Indexable datasets hold nothing open. Some of those read in order do: a window that is being delivered, or elements of a
stream since its last snapshot. For these, a plain loop computes just these elements, which is the limit of a resume.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps

WINDOW = 1000
COMPONENTS = 500
EPISODE = 100
LENGTH = 256  # tokens of a packed sequence


def costly(value: int) -> NDArray[np.float32]:
    """Return an array made from a number in about 20 microseconds."""
    numbers = np.arange(value % 97, 2048, dtype=np.float32)
    return np.array([np.sqrt(numbers).sum(), np.square(numbers).mean(), value], np.float32)


@dataclass(frozen=True, slots=True)
class Kind:
    """One dataset to resume.

    Attributes:
        name: in the report.
        dataset: batches, with as many elements as `steps` need.
        open_elements: the number of elements that a resume from a state must compute again; None if always 0.
        function: makes one of these elements from a number.
    """

    name: str
    dataset: ps.Dataset[Any]
    open_elements: Callable[[Any], int] | None = None
    function: Callable[[int], Any] = costly


def indexable(count: int, batch_size: int) -> list[Kind]:
    """Return the kinds whose batches depend only on the step; `count` records each, at least 1,000."""
    numbers = np.arange(count)
    episodes = ps.range(count // EPISODE, seed=7).map(episode)
    lengths = np.full(count // EPISODE, EPISODE)
    return [
        Kind("shuffle, map", ps.range(count, seed=7).shuffle().map(negate).batch(batch_size)),
        Kind(
            "shuffle by blocks", ps.range(count, seed=7).shuffle(blocks=512, live=48, rows=batch_size).batch(batch_size)
        ),
        *(Kind(f"mix of {parts}", _mix(count, parts).batch(batch_size)) for parts in (2, COMPONENTS)),
        Kind("windows", episodes.windows(20, lengths=lengths).shuffle().batch(batch_size)),
        Kind("sample", ps.range(count, seed=7).sample(numbers % 5 + 1.0).map(negate).batch(batch_size)),
        Kind("balance", ps.range(count, seed=7).balance(numbers % 10 // 9).map(negate).batch(batch_size)),
    ]


def ordered(count: int, batch_size: int) -> list[Kind]:
    """Return the kinds that are read in order, of at least `count` elements each, which cost 20 microseconds each."""
    numbers = ps.range(count, seed=7).map(costly)
    halves = {"a": numbers, "b": ps.range(count, 2 * count, seed=7).map(costly)}
    kinds = [
        Kind("filter", numbers.filter(is_kept)),
        Kind("flat_map", numbers.flat_map(twice)),
        Kind("window_shuffle", numbers.filter(is_kept).window_shuffle(WINDOW), lambda _: WINDOW),
        Kind("mix by a measure", ps.mix(halves, {"a": 2, "b": 1}, measure=measure)),
        Kind("pack", ps.range(3 * count, seed=7).map(document).pack(LENGTH), documents_open, document),
        Kind("stream with a state", ps.stream(partial(Numbers, count)).map(costly)),
    ]
    return [replace(kind, dataset=kind.dataset.batch(batch_size)) for kind in kinds]


def _mix(count: int, parts: int) -> ps.Dataset[int]:
    size = count // parts
    names = [f"part {number}" for number in range(parts)]
    starts = range(0, size * parts, size)
    components = [ps.range(start, start + size, seed=7).shuffle().map(negate) for start in starts]
    return ps.mix(dict(zip(names, components, strict=True)))


def negate(value: int) -> int:
    """Return the negative: a map that costs nothing."""
    return -value


def episode(number: int) -> NDArray[np.int64]:
    """Return the frames of an episode."""
    return np.arange(EPISODE) + number


def is_kept(element: NDArray[np.float32]) -> bool:
    """Return whether a filter keeps an element; it keeps all."""
    return bool(element[2] >= 0)


def twice(element: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return an element and its negative."""
    return [element, -element]


def measure(element: NDArray[np.float32]) -> int:
    """Return the weight of an element in a mixture: from 1 to 5."""
    return 1 + int(element[2]) % 5


class Numbers:
    """The integers below a count, read in order, with a state: the number of integers read."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._read = 0

    def __iter__(self) -> Iterator[int]:
        while self._read < self._count:
            self._read += 1
            yield self._read - 1

    def get_state(self) -> int:
        """Return the number of integers read."""
        return self._read

    def set_state(self, state: int) -> None:
        """Continue after that many integers."""
        self._read = state


def document(number: int) -> dict[str, NDArray[np.int32]]:
    """Return a document of 1 to 200 tokens, in the same time as other elements."""
    return {"tokens": np.full(1 + number * 37 % 200, int(costly(number)[2]), np.int32)}


def documents_open(state: Any) -> int:  # noqa: ANN401 - a state's cursor is nested lists
    """Return the number of documents in the open sequences of a packed dataset's state."""
    _, (_, _, _, sequences) = state["cursor"]
    return sum(len(sequence) // 3 for sequence in sequences)


def computed(kind: Kind, elements: int) -> Callable[[], object]:
    """Return a plain loop that computes as many elements of a kind as a resume must."""

    def run() -> object:
        made = map(kind.function, range(elements))
        return [element for element in made if is_kept(element)] if kind.function is costly else list(made)

    return run

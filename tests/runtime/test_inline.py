"""Loaders without workers: how much is computed at once, when functions are called, and how deep in the stack."""

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps

ROWS, BATCH = 2000, 4


class Timed:
    """Numbers that are read straight into a batch; each advances a fake clock by some seconds."""

    fixed_shape = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.reads: list[int] = []

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, key: int) -> np.int64:
        return self.read([key])[0]

    def read(self, keys: Any) -> list[np.int64]:
        """Return the records."""
        self.now += self.seconds * len(keys)
        return [np.int64(key) for key in keys]

    def read_into(self, keys: Any, out: Any) -> None:
        """Write the records."""
        self.reads.append(len(keys))
        out[:] = self.read(keys)

    def clock(self) -> float:
        """Return the time."""
        return self.now


@pytest.mark.parametrize(("seconds", "most_batches"), [(0.0, ROWS // BATCH), (0.002, 1), (1.0, 1)])
def test_slow_sources_are_read_batch_by_batch(
    seconds: float, most_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that takes 8 ms or 4 s for a batch is read one batch at a time, a fast one many at a time."""
    source = Timed(seconds)
    monkeypatch.setattr("penstock._runtime._inline.time", SimpleNamespace(perf_counter=source.clock))
    found = [number for batch in ps.Loader(ps.read(source).batch(BATCH)) for number in batch.tolist()]
    assert found == list(range(ROWS))
    assert min(source.reads) > 0
    assert max(source.reads) <= BATCH * most_batches
    assert (max(source.reads) > BATCH) == (most_batches > 1)


@pytest.mark.parametrize(("rows", "most"), [(2048, 2048), (256, 2048), (1, 64)])
def test_few_elements_that_stay_objects_are_computed_at_once(rows: int, most: int) -> None:
    """Where a function merges elements, batches of many rows are computed one by one, and small ones a few at once."""
    made: list[int] = []

    def noted(number: int) -> int:
        made.append(number)
        return number

    dataset = ps.range(8192).map(noted).batch(rows, merge=list)
    ahead: list[int] = []
    for number, batch in enumerate(ps.Loader(dataset, num_workers=0)):
        assert batch == list(range(number * rows, (number + 1) * rows))
        ahead.append(len(made) - number * rows)
    assert min(ahead) >= rows
    assert max(ahead) <= most


class Watched:
    """A function that passes numbers on; it counts its calls, each of which advances a fake clock by some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def __call__(self, number: int) -> int:
        """Return the number."""
        self.calls += 1
        return number

    def twice(self, number: int) -> list[int]:
        """Return two numbers."""
        return [self(number), number]

    def keeps(self, number: int) -> bool:
        """Return True."""
        return self(number) >= 0

    def clock(self) -> float:
        """Return the time."""
        return self.seconds * self.calls


def same_many(number: int) -> list[int]:
    """Return a number often."""
    return [number] * 1000


ABOVE_LARGE_CHUNKS: dict[str, Callable[[ps.Dataset[int], Watched], ps.Dataset[int]]] = {
    "map": lambda window, watched: window.map(watched),
    "filter": lambda window, watched: window.filter(watched.keeps),
    "flat_map": lambda window, watched: window.flat_map(watched.twice),
    "map above flat_map": lambda window, watched: window.flat_map(same_many).map(watched),
    "map above mix": lambda window, watched: ps.mix({"a": window, "b": window}, {"a": 1, "b": 1}).map(watched),
    "map in mix": lambda window, watched: ps.mix({"a": window.map(watched), "b": window}, {"a": 1, "b": 1}),
}


def test_slow_functions_above_a_window_are_not_applied_to_all_of_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch waits for the functions of its own rows; fast functions get many at once, yet not all."""
    window = ps.range(4000, seed=1).window_shuffle(4000)
    for verb, above in ABOVE_LARGE_CHUNKS.items():
        for seconds, most in (1.0, BATCH), (0.0, 4096):
            watched = Watched(seconds)
            for module in ("_elementwise", "_turns"):
                monkeypatch.setattr(f"penstock._streaming.{module}.time", SimpleNamespace(perf_counter=watched.clock))
            with ps.Loader(above(window, watched).batch(BATCH), num_workers=0) as loader:
                next(iter(loader))
            assert 0 < watched.calls <= most, verb


class AtOnce(Watched):
    """The same with a form for blocks, whose time doesn't depend on their size."""

    def apply_block(self, numbers: Sequence[int]) -> list[int]:
        """Return the numbers."""
        self.calls += 1
        return list(numbers)


def test_slow_functions_of_blocks_above_a_window_get_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may take as long for one element as for a hundred, so such functions get all that is there."""
    watched = AtOnce(1.0)
    monkeypatch.setattr("penstock._streaming._elementwise.time", SimpleNamespace(perf_counter=watched.clock))
    dataset = ps.range(128, seed=1).window_shuffle(128).map(watched).batch(BATCH)
    assert sum(map(len, ps.Loader(dataset, num_workers=0))) == 128
    assert watched.calls < 10


depths: list[int] = []


def depth() -> int:
    """Return how many frames the caller's stack has."""
    frame, count = inspect.currentframe(), -1
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def note_depth(element: Any) -> Any:
    """Record how deep the stack is, and return the element."""
    depths.append(depth())
    return element


def merge_and_note(rows: list[Any]) -> Any:
    """Record how deep the stack is, and merge the rows."""
    depths.append(depth())
    return np.array(rows)


def with_key(number: Any) -> dict[str, Any]:
    """Return an element with a key."""
    return {"number": number}


NUMBERS = ps.range(90)


@pytest.mark.parametrize(
    ("dataset", "most"),
    [
        (NUMBERS.map(note_depth).batch(4), 7),
        (NUMBERS.map(note_depth).shuffle().map(with_key).map(note_depth).batch(4), 7),
        (NUMBERS.map(note_depth), 7),
        (NUMBERS.batch(4, merge=merge_and_note), 7),
        (NUMBERS.batch(4).map(note_depth), 4),
        (NUMBERS.map(with_key).batch(4).map(note_depth), 4),
    ],
    ids=["row", "first and last of three", "no batch", "merge", "batch", "batch of mapped rows"],
)
def test_few_frames_are_between_the_loop_and_a_function(dataset: ps.Dataset[Any], most: int) -> None:
    """A user's traceback and profile show few frames of the library above a function of the dataset."""
    depths.clear()
    for _ in ps.Loader(dataset):
        pass
    assert depths
    assert max(depths) - depth() - 1 <= most  # the function's own frame doesn't count


def test_a_function_of_batches_is_called_when_its_batch_is_requested() -> None:
    """Several small batches are merged at once, but each goes through the function above when it is delivered."""
    seen: list[int] = []

    def note(batch: Any) -> Any:
        seen.append(int(batch[0]))
        return batch

    for number, batch in enumerate(ps.Loader(ps.range(400).batch(4).map(note))):
        assert batch[0] == 4 * number
        assert len(seen) == number + 1


def test_a_failing_function_of_batches_is_called_once_for_each_attempt() -> None:
    """The batches around a failing one go through the function once; the failing one again when it is requested."""
    seen: list[int] = []
    fails = [True]

    def double(batch: Any) -> Any:
        seen.append(int(batch[0]))
        batch *= 2
        if batch[0] == 80 and fails:
            fails.clear()
            raise ValueError("the tenth")
        return batch

    batches = iter(ps.Loader(ps.range(100).batch(4).map(double)))
    delivered = [next(batches).tolist() for _ in range(10)]
    with pytest.raises(ValueError, match="the tenth"):
        next(batches)
    delivered += [batch.tolist() for batch in batches]
    assert delivered == [[2 * number for number in range(start, start + 4)] for start in range(0, 100, 4)]
    assert seen == [*range(0, 44, 4), *range(40, 100, 4)]


@pytest.mark.parametrize("odd", [0, 37, 99])
def test_a_row_of_another_shape_is_computed_once(odd: int) -> None:
    """Where a row doesn't fit the layout of the rows before it, the computed rows of that block are merged."""
    calls: list[int] = []

    def keyed(number: int) -> dict[str, int]:
        calls.append(number)
        return {"b": 1, "a": number} if number == odd else {"a": number, "b": 1}

    found = [batch["a"].tolist() for batch in ps.Loader(ps.range(100).map(keyed).batch(4))]
    assert found == np.arange(100).reshape(25, 4).tolist()
    assert calls == list(range(100))

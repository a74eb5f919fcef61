"""An exception of a user's function is raised unchanged, with its place in a note, and no other batch is lost."""

import asyncio
import select
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._tree import flatten
from penstock.errors import UsageError
from tests.dataset.functions import keep
from tests.loader.sent_functions import (
    BAD,
    Checked,
    CheckedBlocks,
    CheckedSource,
    DecodeError,
    FrozenError,
    NestedSource,
    ReplacingSource,
    SortingSource,
    bad,
    frozen,
    ragged,
    stop,
)
from tests.places import LINUX, PLACES, in_places, place_of

WORKERS = ("inline", "threads")
ORDER = [int(number) for number in ps.range(40, seed=3).shuffle()]
POSITION = ORDER.index(BAD)
STEP = POSITION // 4


def failing(check: Callable[[int], None]) -> dict[str, ps.Dataset]:
    """Return datasets with a function, or a source, that calls another one with each number."""
    rows = ps.range(40, seed=3).shuffle()
    kept = rows.filter(keep)
    does = Checked(check)
    return {
        "map": rows.map(does.map).batch(4),
        "random_map": rows.random_map(does.map_randomly).batch(4),
        "map_with_origin": rows.map_with_origin(does.map_with_origin, name="x").batch(4),
        "map above batch": rows.batch(4).map(does.batch),
        "merge": rows.batch(4, merge=does.batch),
        "source": ps.read(CheckedSource(check), seed=3).shuffle().batch(4),
        "source in blocks": ps.read(CheckedBlocks(check), seed=3).shuffle().batch(4),
        "map, in order": rows.map(does.map).filter(keep).batch(4),
        "flat_map, in order": rows.flat_map(does.generate).batch(4),
        "predicate, in order": rows.filter(does.keep).batch(4),
        "map above batch, in order": kept.batch(4).map(does.batch),
        "merge, in order": kept.batch(4, merge=does.batch),
    }


AT = rf"epoch 0, position {POSITION}, key {BAD}"
OF_BATCH = f"while making the batch of step {STEP}: epoch 0"
NOTES = {
    "map": f"in step 'Checked.map' at {AT}",
    "random_map": f"in step 'Checked.map_randomly' at {AT}",
    "map_with_origin": f"in step 'x' at {AT}",
    "map above batch": f"in step 'Checked.batch' at epoch 0, position {STEP * 4}, key {ORDER[STEP * 4]}",
    "merge": OF_BATCH,
    "source": f"while reading key {BAD} of ",
    "source in blocks": f"while reading key {BAD} of ",
    "map, in order": f"in step 'Checked.map' at {AT}",
    "flat_map, in order": f"in step 'Checked.generate' at {AT}",
    "predicate, in order": f"in step 'Checked.keep' at {AT}",
    "map above batch, in order": OF_BATCH,
    "merge, in order": OF_BATCH,
}


def ours(error: BaseException) -> list[str]:
    """Return the names of Penstock's functions in an exception's traceback."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [each.f_code.co_name for each in frames if each.f_globals["__name__"].startswith("penstock.")]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        *(place_of(place, source) for place in WORKERS for source in (ReplacingSource, NestedSource, SortingSource)),
        place_of("processes", ReplacingSource),
        place_of("isolated", SortingSource),
    ],
)
def test_a_source_that_fills_rows_wrongly_is_read_record_by_record(source: Any, place: dict[str, Any]) -> None:
    """So the batch is correct, although nothing was written to its own arrays, or in another order."""
    backwards = range(39, -1, -1)
    with ps.Loader(ps.read(source()).select(backwards).batch(4), **place) as loader:
        found = np.concatenate([np.ravel(flatten(batch)[0][0]) for batch in loader])
    assert found.tolist() == [key for key in backwards for _ in range(2)]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(place_of(place, name) for place in WORKERS for name in NOTES),
        *(place_of("isolated", name) for name in ("map", "map, in order")),
        place_of("isolated processes", "map"),
        # its error goes the same way
        pytest.param(
            "map, in order", PLACES["isolated processes"], id="isolated processes", marks=[LINUX, pytest.mark.long]
        ),
    ],
)
def test_an_exception_is_raised_unchanged(name: str, place: dict[str, Any]) -> None:
    """An exception keeps its type, has notes of its place, and comes after earlier batches; `seek` passes it."""
    with ps.Loader(failing(bad)[name], **place) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(STEP)] == [ORDER[i * 4 : i * 4 + 4] for i in range(STEP)]
        for _ in range(2):  # the same batch is tried again
            with pytest.raises(DecodeError) as caught:
                next(batches)
            assert caught.value.offset == BAD * 2
            assert any(NOTES[name] in each for each in caught.value.__notes__), caught.value.__notes__
            assert any(f"step {STEP}: epoch 0" in each for each in caught.value.__notes__)
            if place.get("isolated"):
                assert any("in bad" in each for each in caught.value.__notes__)  # the helper's traceback
            else:
                assert caught.traceback[-1].name == "bad"
            assert len(ours(caught.value)) == 1, "one frame of Penstock's stands for all"
            assert loader.state_dict()["step"] == STEP
        if "in order" not in name:
            loader.seek(STEP + 1)
            assert [batch.tolist() for batch in loader] == [ORDER[i * 4 : i * 4 + 4] for i in range(STEP + 1, 10)]


@pytest.mark.each_value  # the consumer adds all notes, whichever place an exception comes from
@pytest.mark.parametrize(
    ("name", "place"),
    [*(place_of(place, name) for place in WORKERS for name in NOTES), place_of("isolated", "map")],
)
def test_an_exception_that_refuses_a_note_is_raised_unchanged(name: str, place: dict[str, Any]) -> None:
    """An exception keeps its type if its class lets no attribute be set, as a frozen dataclass; it has no note then."""
    with ps.Loader(failing(frozen)[name], **place) as loader, pytest.raises(FrozenError):
        list(loader)


def test_the_frames_between_the_program_and_its_function_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset and a loader leave out their inner frames, and show all if PENSTOCK_FULL_TRACEBACK is set."""
    dataset = ps.range(40, seed=3).shuffle().map(Checked(bad).map)
    reads: list[Callable[[], object]] = [
        lambda: dataset[POSITION],
        lambda: list(dataset.batch(4)),
        lambda: ps.Loader(dataset.batch(4)).batch_at(STEP),
    ]
    for read in reads:
        for full, most in (("", 1), ("0", 1), ("1", 20)):
            monkeypatch.setenv("PENSTOCK_FULL_TRACEBACK", full)
            with pytest.raises(DecodeError) as caught:
                read()
            assert most // 4 < len(ours(caught.value)) <= most


KINDS = (SystemExit, KeyboardInterrupt, GeneratorExit, OSError, MemoryError)


class Raises:
    """A function that raises each exception at its own number, in a worker and in the consumer, and then succeeds."""

    def __init__(self) -> None:
        self.left = [(ORDER[8 * index + 2], kind) for index, kind in enumerate(KINDS) for _ in range(2)]
        self._lock = threading.Lock()

    def __call__(self, number: int) -> int:
        """Return the number, or raise."""
        with self._lock:
            for at, kind in self.left:
                if at == number:
                    self.left.remove((at, kind))
                    raise kind("once")
        return number


@in_places(*WORKERS)
@pytest.mark.parametrize("in_order", ["", "in order"])
def test_the_iterator_continues_after_any_exception(place: dict[str, Any], in_order: str) -> None:
    """After any exception, also one that ends programs, the next call computes the same batch again."""
    numbers = ps.range(40, seed=3).shuffle().map(Raises(), name="raises")
    dataset = (numbers.filter(keep) if in_order else numbers).batch(4)
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        found: list[Any] = []
        while len(found) < 10:
            try:
                found.append(next(batches).tolist())
            except KINDS:
                assert loader.state_dict()["step"] == len(found)
        assert next(batches, None) is None
        assert found == [ORDER[i : i + 4] for i in range(0, 40, 4)]


@in_places("inline", "threads", "processes")
def test_rows_that_do_not_stack_name_their_batch(place: dict[str, Any]) -> None:
    """The error of rows of different shapes is the same in every place, and names the batch."""
    dataset = ps.range(8).map(ragged).batch(4)
    with pytest.raises(UsageError) as expected:
        list(dataset)
    with ps.Loader(dataset, **place) as loader, pytest.raises(UsageError) as raised:
        list(loader)
    assert str(raised.value) == str(expected.value)
    assert "while making the batch of step 1: epoch 0, from position 4 on" in raised.value.__notes__


@pytest.mark.parametrize(
    ("name", "place"),
    [*(place_of(place, name) for place in WORKERS for name in NOTES), place_of("processes", "map")],
)
def test_stop_iteration_is_an_error_not_an_end(name: str, place: dict[str, Any]) -> None:
    """A StopIteration of user code becomes a RuntimeError at its batch, never a silent end of the epoch."""
    with ps.Loader(failing(stop)[name], **place) as loader:
        found: list[Any] = []
        with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
            found.extend(batch.tolist() for batch in Plainly(iter(loader)))
        assert isinstance(caught.value.__cause__, StopIteration)
        assert found == [ORDER[i * 4 : i * 4 + 4] for i in range(STEP)]


class Plainly:
    """An iterator without a generator, which would turn a StopIteration into a RuntimeError by itself."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> "Plainly":
        return self

    def __next__(self) -> Any:
        return next(self._iterator)


class FailingSampler:
    """A user's sampler that raises at one position."""

    def __len__(self) -> int:
        return 40

    def fingerprint(self) -> str:
        """Return the identity of the order, so that no position is tried for it."""
        return "failing"

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the position, or raise."""
        bad(position)
        return epoch, position


@in_places(*WORKERS)
@pytest.mark.parametrize("where", ["below", "above"])
def test_a_sampler_may_raise(place: dict[str, Any], where: str) -> None:
    """A sampler's error, below or above `batch`, is raised at its own step, after the batches before it."""
    if where == "below":
        dataset, step = ps.range(40).reindex(FailingSampler()).batch(4), BAD // 4
    else:
        dataset, step = ps.range(160).batch(4).reindex(FailingSampler()), BAD
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        for number in range(step):
            assert next(batches).tolist() == list(range(number * 4, number * 4 + 4))
        with pytest.raises(DecodeError):
            next(batches)
        assert loader.state_dict()["step"] == step
        loader.seek(step + 1)
        assert next(iter(loader)).tolist() == list(range(step * 4 + 4, step * 4 + 8))


def test_the_same_error_raised_again_has_one_traceback_as_a_note() -> None:
    """Where the program first asks for a batch, the error has its traceback as a note, however often it is raised."""
    error = DecodeError("x.png", 3)

    def raises(_number: int) -> int:
        raise error

    with ps.Loader(ps.range(4).map(raises).batch(4), num_workers=1, workers="threads") as loader:
        batches = iter(loader)
        for _ in range(3):
            while (descriptor := batches.may_wait) is not None:
                select.select([descriptor], [], [])
            with pytest.raises(DecodeError) as caught:
                next(batches)
            assert caught.value is error
            assert [", in raises" in note for note in error.__notes__].count(True) == 1


@in_places(*WORKERS)
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_error_that_ends_programs_is_raised_by_next(place: dict[str, Any], error: type[BaseException]) -> None:
    """A program that asks whether a batch is ready gets no exception of a function, whatever its kind."""

    def raises(number: int) -> int:
        if number == BAD:
            raise error("no number")
        return number

    with ps.Loader(ps.range(40).map(raises).batch(4), **place) as loader:
        batches = iter(loader)
        for step in range(BAD // 4 + 1):
            while (descriptor := batches.may_wait) is not None:
                select.select([descriptor], [], [])
            if step < BAD // 4:
                next(batches)
        with pytest.raises(error, match="no number"):
            next(batches)
        assert loader.state_dict()["step"] == BAD // 4

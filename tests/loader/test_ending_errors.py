"""An exception that ends programs, such as SystemExit, comes at its own batch wherever user code raises it."""

import asyncio
import select
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import keep
from tests.loader.sent_functions import AtHome
from tests.places import in_places, place_of
from tests.ticks import Tick

ENDING = pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
BAD = 27


def may_raise(error: type[BaseException], number: int) -> None:
    """Raise an exception at one number."""
    if number == BAD:
        raise error("no number")


class FailingSampler:
    """A user's sampler that raises an exception at one position."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __len__(self) -> int:
        return 40

    def fingerprint(self) -> str:
        """Return the identity of the order, so that no position is tried for it."""
        return "failing"

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the position, or raise."""
        may_raise(self._error, position)
        return epoch, position


@in_places("inline", "threads", "out of order")
@ENDING
@pytest.mark.parametrize("asks", [False, True])
def test_a_sampler_above_batch_raises_at_its_own_step(
    place: dict[str, Any],
    error: type[BaseException],
    asks: bool,  # noqa: FBT001 - parametrized
) -> None:
    """All batches before its step come first, and workers compute those after it when the program seeks past it."""
    dataset = ps.range(160).batch(4).reindex(FailingSampler(error))
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        found: list[int] = []
        for step in range(BAD + 1):
            while asks and (descriptor := batches.may_wait) is not None:
                select.select([descriptor], [], [])
            if step < BAD:
                found.append(int(next(batches)[0]) // 4)
        for _ in range(2):
            with pytest.raises(error, match="no number"):
                next(batches)
        assert sorted(found) == [*range(BAD)]
        loader.seek(BAD + 1)
        assert sorted(int(batch[0]) // 4 for batch in iter(loader)) == [*range(BAD + 1, 40)]


class User:
    """User code that raises an exception where it gets one number."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __call__(self, number: Any) -> Any:
        """Return the number, or raise."""
        may_raise(self._error, int(np.min(number)))
        return number

    def keep(self, number: Any) -> bool:
        """Keep the number, or raise."""
        return bool(self(number) >= 0)

    def pieces(self, number: Any) -> list[Any]:
        """Return the number in a list, or raise."""
        return [self(number)]

    def generated(self) -> Iterator[Any]:
        """Yield numbers, and raise."""
        yield from map(self, range(40))

    def add(self, number: Any) -> list[Any]:
        """Return the number in a list, as a combiner does, or raise."""
        return [self(number)]

    def flush(self) -> list[Any]:
        """Return nothing, since nothing is held."""
        return []


class InBlocks(User):
    """A function that takes blocks."""

    def apply_block(self, numbers: Sequence[Any]) -> list[Any]:
        """Return the numbers, or raise."""
        return [self(number) for number in numbers]


def documents(numbers: ps.Dataset[Any]) -> ps.Dataset[Any]:
    """Return sequences of one document each, which has one number."""
    return numbers.map(lambda number: {"number": np.array([number])}).pack(1)


def in_order(user: User, in_blocks: InBlocks) -> dict[str, tuple[ps.Dataset[Any], int]]:
    """Return datasets that are read in order, with user code that raises, and the step of the batch of the error."""
    numbers = ps.range(40)
    kept = numbers.filter(keep)
    return {
        "function below a filter": (numbers.map(user).filter(keep).batch(4), BAD // 4),
        "predicate": (numbers.filter(user.keep).batch(4), BAD // 4),
        "function above a filter": (kept.map(user).batch(4), BAD // 4),
        "function of blocks": (kept.map(in_blocks).filter(keep).batch(4), BAD // 4),
        "flat_map": (kept.flat_map(user.pieces).batch(4), BAD // 4),
        "stream": (ps.stream(user.generated).batch(4), BAD // 4),
        "combine": (kept.combine(lambda: user).batch(4), BAD // 4),
        "mix": (ps.mix([kept.map(user), ps.range(1000, 1040).filter(keep)]).batch(4), -1),
        "pack": (documents(kept.map(user)).batch(4), BAD // 4),
        "bucket": (kept.map(user).bucket(int, [100], rows=4), BAD // 4),
        "window_shuffle": (numbers.window_shuffle(4).map(user).batch(4), BAD // 4),
        "function of a batch": (kept.batch(1).map(user), BAD),
        "function of a batch in blocks": (kept.batch(1).map(in_blocks), BAD),
        "merge": (kept.batch(1, merge=lambda rows: user(rows[0])), BAD),
    }


NAMES = [*in_order(User(ValueError), InBlocks(ValueError))]


@pytest.mark.filterwarnings("ignore:User.generated has no state:UserWarning")
@pytest.mark.parametrize(
    ("name", "error", "place"),
    [
        *(place_of("inline", name, error) for name in NAMES for error in (SystemExit, GeneratorExit)),
        *(place_of("threads", name, asyncio.CancelledError) for name in NAMES),
    ],
)
def test_batches_read_in_order_come_before_the_error(
    name: str, error: type[BaseException], place: dict[str, Any]
) -> None:
    """The same batches as before a ValueError at that place come, and then the error, however often it is requested."""
    counts: list[int] = []
    for kind in (ValueError, error):
        dataset, step = in_order(User(kind), InBlocks(kind))[name]
        with ps.Loader(dataset, **place) as loader:
            batches, found = iter(loader), list[Any]()
            for _ in range(2):
                with pytest.raises(kind, match="no number"):
                    found.extend(batches)
            assert loader.state_dict()["step"] == len(found)
        counts.append(len(found))
        assert step in {len(found), -1}
    assert counts[0] == counts[1] > 0


@in_places("inline", "threads")
@pytest.mark.parametrize("name", NAMES)
def test_a_loader_of_a_dataset_read_in_order_is_closed_early(name: str, place: dict[str, Any]) -> None:
    """Generators that are closed between two elements end at once, also where these make no batch yet."""
    dataset, _ = in_order(User(ValueError), InBlocks(ValueError))[name]
    for count in range(4):
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            assert len([next(batches) for _ in range(count)]) == count


class Signals(InBlocks):
    """User code that a signal interrupts, once, where it gets one number."""

    def __init__(self) -> None:
        super().__init__(Tick)
        self.sent = 0

    def __call__(self, number: Any) -> Any:
        """Return the number; the program's handler is called meanwhile."""
        if int(np.min(number)) == BAD and not self.sent:
            self.sent += 1
            signal.raise_signal(signal.SIGUSR1)
        return number


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no signal for programs here")
@pytest.mark.filterwarnings("ignore:User.generated has no state:UserWarning")
@pytest.mark.parametrize("raised", [Tick, SystemExit])
@pytest.mark.parametrize("name", NAMES)
def test_the_exception_of_a_handler_comes_at_once(name: str, raised: type[BaseException]) -> None:
    """The call of `next` that the signal interrupts raises what the handler raised, and no batch is lost.

    A handler that ends the program may have put back the one before it, so that a second signal kills.
    """

    def tick(number: int, frame: object) -> None:
        if raised is SystemExit:
            signal.signal(number, signal.SIG_DFL)
        raise raised(number, frame)

    user, found = Signals(), list[tuple[int, Any]]()
    dataset, _ = in_order(user, user)[name]
    before = signal.signal(signal.SIGUSR1, tick)
    try:
        with ps.Loader(dataset) as loader:
            batches = iter(loader)
            with pytest.raises(raised):
                found.extend((user.sent, batch) for batch in batches)
            assert not any(sent for sent, _ in found), "a later call raised it"
            assert loader.state_dict()["step"] == len(found)
            assert len(found) + len([*batches]) == len([*loader])
    finally:
        signal.signal(signal.SIGUSR1, before)


@in_places("processes")
def test_an_element_that_ends_the_program_where_it_is_loaded_is_computed_here(place: dict[str, Any]) -> None:
    """As any element that can't be sent: the consumer computes its batch, and no batch is lost."""
    with ps.Loader(ps.range(40).map(AtHome).batch(4, merge=list), **place) as loader:
        assert [element.number for batch in loader for element in batch] == [*range(40)]

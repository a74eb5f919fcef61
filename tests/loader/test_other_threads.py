"""Another thread acts at any moment of `next`: it closes the loader, begins a pass, loads a state or asks for one.

It also begins a pass at any moment at which one is begun.
"""

import dis
import functools
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ClosedError
from tests.dataset.functions import keep, same
from tests.places import in_places
from tests.profiles import IS_LONG

CRASHES = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="CPython 3.12 crashes where a thread closes a generator that another one traces",
)
pytestmark = [pytest.mark.longer, CRASHES]
PLACES = in_places("inline", "threads", "isolated")
SWITCHES = ("CALL", "RESUME", "JUMP_BACKWARD")
"""The instructions after which Python may switch to another thread."""
PACKAGES = tuple(str(Path(ps.__file__).parent / package) for package in ("_loader", "_runtime", "_streaming"))
LOCKED_SECONDS = 0.005
"""The time after which a thread that acts is seen to wait for a lock of the thread that reads."""
DATASETS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "indexed": lambda rows: rows.batch(4),
    "in order": lambda rows: rows.filter(keep).batch(4),
    "above a fold": lambda rows: rows.filter(keep).batch(4).map(same),
    "elements above a fold": lambda rows: rows.filter(keep).limit(30).map(same).batch(4),
}


@functools.cache
def after_switches(code: types.CodeType) -> set[int]:
    """Return where Python is in a function when it has switched to another thread and back."""
    found = set[int]()
    for switch, following in itertools.pairwise(dis.get_instructions(code)):
        if switch.opname.startswith(SWITCHES):
            found.add(switch.argval if switch.opname.startswith("JUMP") else following.offset)
    return found


def to_try(moments: Iterable[int], *, few: bool = False) -> list[int]:
    """Return some of the moments, at equal distances: in the short profile each eighth, of a few each 24th."""
    return list(moments)[:: (3 if few else 1) * (1 if IS_LONG else 8)]


class Watched:
    """Calls a function; at one of the moments at which Python may switch threads, another thread acts.

    Attributes:
        moments: the moments that were met: the instructions, each with the one that called its function.
        error: the error of the function.
        result: what the other thread's action returned.
    """

    def __init__(self, moment: int, act: Callable[[], object], function: Callable[[], object]) -> None:
        """Call the function; the other thread acts at the moment with a number, if there is one."""
        self.moments: list[tuple[object, ...]] = []
        self.error: Exception | None = None
        self.result: Any = None
        self._moment = moment
        self._other = threading.Thread(target=self._act, args=(act,))
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            function()
        except Exception as error:  # noqa: BLE001 - a test looks at it
            self.error = error
        finally:
            sys.settrace(before)
        if self.is_met:
            self._other.join()

    @property
    def is_met(self) -> bool:
        """Whether the moment came, so that the other thread acted."""
        return self._moment < len(self.moments)

    def _act(self, act: Callable[[], object]) -> None:
        self.result = act()

    def _trace(self, frame: types.FrameType, *_: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if frame.f_lasti in after_switches(frame.f_code):
            caller = frame.f_back
            self.moments.append((frame.f_code, frame.f_lasti, caller and caller.f_code, caller and caller.f_lasti))
            if self._moment == len(self.moments) - 1:
                self._other.start()
                self._other.join(LOCKED_SECONDS)
        return self._trace


class Reading(Watched):
    """Reads two batches of a loader while another thread acts.

    Attributes:
        batches: the batches.
    """

    def __init__(self, loader: ps.Loader[Any], moment: int, act: Callable[[ps.Loader[Any]], object]) -> None:
        """Read; the other thread acts at the moment with a number, if there is one."""
        self.batches: list[list[int]] = []
        self.iterator = iter(loader)
        super().__init__(moment, lambda: act(loader), self._read)

    def _read(self) -> None:
        for _ in range(2):
            self.batches.append(next(self.iterator).tolist())


def read_at_each_moment(
    dataset: ps.Dataset,
    place: dict[str, Any],
    act: Callable[[ps.Loader[Any]], object],
    check: Callable[..., None],
    kind: type[ps.Loader[Any]] = ps.Loader,
) -> None:
    """Read batches as often as there are moments; each time another thread acts at one, and the outcome is checked."""
    expected = [batch.tolist() for batch in dataset]
    with kind(dataset, **place) as loader:
        moments = Reading(loader, sys.maxsize, act).moments
    numbers = {moment: number for number, moment in reversed(list(enumerate(moments)))}
    assert len(numbers) > 10
    # With workers few moments, since these differ between two readings anyway.
    for number in to_try(numbers.values(), few=bool(place)):
        with kind(dataset, **place) as loader:
            reading = Reading(loader, number, act)
            assert reading.batches == expected[: len(reading.batches)], moments[number]
            if reading.is_met:
                check(loader, reading, expected)
        with pytest.raises(ClosedError):
            next(reading.iterator)


def dataset_of(kind: str) -> ps.Dataset:
    """Return batches of numbers."""
    return DATASETS[kind](ps.range(40).map(same))


def is_complete_or_closed(_: ps.Loader[Any], reading: Reading, __: object) -> None:
    """Check that the thread that reads got its batches, or a ClosedError."""
    assert len(reading.batches) == 2 or str(reading.error) == "the loader was closed"


@PLACES
@pytest.mark.parametrize("kind", DATASETS)
def test_another_thread_may_close_the_loader(kind: str, place: dict[str, Any]) -> None:
    """The thread that reads gets its batches, or a ClosedError."""
    read_at_each_moment(dataset_of(kind), place, ps.Loader.close, is_complete_or_closed)


@PLACES
def test_another_thread_may_close_a_loader_that_places_batches_ahead(place: dict[str, Any]) -> None:
    """The batches that were placed ahead aren't dropped while the thread that reads uses them."""
    torch = pytest.importorskip("penstock.torch")
    read_at_each_moment(dataset_of("indexed"), place, ps.Loader.close, is_complete_or_closed, torch.Loader)


@PLACES
@pytest.mark.parametrize("kind", DATASETS)
def test_another_thread_may_load_a_state(kind: str, place: dict[str, Any]) -> None:
    """The loader goes on at the state's step, whatever the thread that reads was delivered."""
    with ps.Loader(dataset_of(kind)) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()

    def check(loader: ps.Loader[Any], reading: Reading, expected: list[list[int]]) -> None:
        assert len(reading.batches) == 2 or isinstance(reading.error, ClosedError)
        assert loader.step == 3
        assert [batch.tolist() for batch in loader] == expected[3:]

    read_at_each_moment(dataset_of(kind), place, lambda loader: loader.load_state_dict(state), check)


@PLACES
@pytest.mark.parametrize("kind", DATASETS)
def test_another_thread_may_begin_a_pass(kind: str, place: dict[str, Any]) -> None:
    """The newer iterator delivers a whole epoch, and counts its batches alone."""

    def check(loader: ps.Loader[Any], reading: Reading, expected: list[list[int]]) -> None:
        assert len(reading.batches) == 2 or isinstance(reading.error, ClosedError)
        before = loader.steps_done
        assert [batch.tolist() for batch in reading.result] == expected
        assert loader.steps_done - before == len(expected)

    read_at_each_moment(dataset_of(kind), place, iter, check)


def begin_at_each_moment(
    dataset: ps.Dataset,
    place: dict[str, Any],
    act: Callable[[ps.Loader[Any]], object],
    check: Callable[[ps.Loader[Any], list[list[int]], Any], None],
) -> None:
    """Begin the second epoch as often as there are moments; each time another thread acts at one."""

    def begin(moment: int) -> Watched:
        with ps.Loader(dataset, **place) as loader:
            next(iter(loader))
            begun: list[ps.LoaderIterator[Any]] = []
            watched = Watched(moment, lambda: act(loader), lambda: begun.append(iter(loader)))
            assert watched.error is None
            if watched.is_met:
                check(loader, batches_of(begun[0]), watched.result)
        return watched

    numbers = {moment: number for number, moment in reversed(list(enumerate(begin(sys.maxsize).moments)))}
    assert len(numbers) > 10
    for number in to_try(numbers.values(), few=bool(place)):
        begin(number)


def batches_of(iterator: ps.LoaderIterator[Any]) -> list[list[int]]:
    """Return the batches of a pass, none if it is not the current one."""
    try:
        return [batch.tolist() for batch in iterator]
    except ClosedError:
        return []


@PLACES
@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_another_thread_may_begin_a_pass_while_one_is_begun(kind: str, place: dict[str, Any]) -> None:
    """One of the two passes delivers the whole epoch, and counts its batches; the other one delivers none."""
    dataset = dataset_of(kind)
    expected = [batch.tolist() for batch in dataset]

    def check(loader: ps.Loader[Any], delivered: list[list[int]], other: ps.LoaderIterator[Any]) -> None:
        assert sorted([delivered, batches_of(other)]) == [[], expected]
        assert (loader.epoch, loader.steps_done) == (1, len(expected) + 1)

    begin_at_each_moment(dataset, place, iter, check)


@PLACES
@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_another_thread_may_load_a_state_while_a_pass_is_begun(kind: str, place: dict[str, Any]) -> None:
    """The pass begins at the state's step, or delivers nothing; then the loader is still at that step."""
    dataset = dataset_of(kind)
    expected = [batch.tolist() for batch in dataset]
    with ps.Loader(dataset) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()

    def check(loader: ps.Loader[Any], delivered: list[list[int]], _: object) -> None:
        assert (delivered or batches_of(iter(loader))) == expected[3:]
        assert (loader.epoch, loader.steps_done) == (0, len(expected))

    begin_at_each_moment(dataset, place, lambda loader: loader.load_state_dict(state), check)


@PLACES
@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_another_thread_may_close_the_loader_while_an_iterator_loads_a_state(kind: str, place: dict[str, Any]) -> None:
    """The iterator delivers nothing afterwards, and says why."""
    dataset = dataset_of(kind)

    def set_state(moment: int) -> Watched:
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            state = loader.state_dict()
            watched = Watched(moment, loader.close, lambda: batches.set_state(state))
            assert watched.error is None or isinstance(watched.error, ClosedError)
            if watched.is_met:
                with pytest.raises(ClosedError, match="the loader was closed"):
                    next(batches)
        return watched

    numbers = {moment: number for number, moment in reversed(list(enumerate(set_state(sys.maxsize).moments)))}
    assert len(numbers) > 10
    for number in to_try(numbers.values(), few=bool(place)):
        set_state(number)


@PLACES
@pytest.mark.parametrize("kind", DATASETS)
def test_another_thread_may_ask_for_the_state(kind: str, place: dict[str, Any]) -> None:
    """The state is the one before or after a batch, and the thread that reads notices nothing."""

    def check(_: ps.Loader[Any], reading: Reading, expected: list[list[int]]) -> None:
        assert reading.error is None
        with ps.Loader(dataset_of(kind)) as resumed:
            resumed.load_state_dict(reading.result)
            left = expected[resumed.step :]
            assert len(left) >= len(expected) - 2
            assert [batch.tolist() for batch in resumed] == left

    read_at_each_moment(dataset_of(kind), place, ps.Loader.state_dict, check)


def seen(loader: ps.Loader[Any]) -> dict[str, Any]:
    """Return what a thread may ask a loader at any moment."""
    return {
        "epoch": loader.epoch,
        "step": loader.step,
        "position": loader.position,
        "steps_done": loader.steps_done,
        "state": loader.state_dict(),
    }


@in_places("inline", "out of order")
@pytest.mark.parametrize("kind", DATASETS)
def test_another_thread_may_look_while_an_epoch_is_read(kind: str, place: dict[str, Any]) -> None:
    """It sees the loader as it is after one of the batches, or in the next epoch."""
    dataset = DATASETS[kind](ps.range(8).map(same))

    def read(moment: int) -> Watched:
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            watched = Watched(moment, lambda: seen(loader), lambda: list(batches))
            assert watched.error is None
            if watched.is_met:
                assert watched.result["epoch"] == 0
                assert watched.result["step"] in (0, 1)
                assert watched.result["position"] in range(9)
                other = ps.Loader(dataset)
                other.load_state_dict(watched.result["state"])
                assert (other.steps_done, other.epoch) in ((0, 0), (1, 0), (2, 0), (2, 1))
        return watched

    read(sys.maxsize)  # the first time has moments of its own
    numbers = {moment: number for number, moment in enumerate(read(sys.maxsize).moments)}
    for number in to_try(numbers.values(), few=bool(place)):
        read(number)


MOVES: dict[str, Callable[[ps.Loader[Any], Any], object]] = {
    "reads to the end": lambda _, batches: list(batches),
    "begins a pass": lambda loader, _: iter(loader),
    "reads the next epoch": lambda loader, _: list(iter(loader)),
    "loads a state": lambda loader, _: loader.load_state_dict(loader.state_dict(step=loader.steps_done - 1)),
    "goes to a step": lambda loader, _: loader.seek(loader.steps_done - 1),
    "goes to a position": lambda loader, _: loader.seek(position=0, epoch=3),
}


@in_places("inline", "out of order")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_a_thread_may_look_while_another_one_moves_the_loader(kind: str, move: str, place: dict[str, Any]) -> None:
    """It sees the loader as it was before, as it is afterwards, or, while steps are read, after one of them."""
    dataset = DATASETS[kind](ps.range(1200))  # more steps than a loader remembers

    def look(moment: int) -> Watched:
        found: list[dict[str, Any]] = []
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            next(batches)
            next(batches)
            before = seen(loader)
            watched = Watched(moment, lambda: MOVES[move](loader, batches), lambda: found.append(seen(loader)))
            if watched.error is not None:
                raise watched.error
            after = seen(loader)
        if watched.is_met:
            for name, value in found[0].items():
                assert value in (before[name], after[name]) or "reads" in move, name
            with ps.Loader(dataset) as other:
                other.load_state_dict(found[0]["state"])
        return watched

    look(sys.maxsize)  # the first time has moments of its own
    numbers = {moment: number for number, moment in enumerate(look(sys.maxsize).moments)}
    for number in to_try(numbers.values(), few=bool(place) or "reads" in move):
        look(number)

"""Another thread acts at any moment of `next` or `iter`: it closes the loader, begins a pass or loads a state."""

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
from tests.places import PLACES, in_places, place_of
from tests.profiles import IS_LONG

CRASHES = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="CPython 3.12 crashes where a thread closes a generator that another one traces",
)
pytestmark = [pytest.mark.longer, CRASHES]
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


def cases(actions: Iterable[str], kinds: Iterable[str], *places: str) -> pytest.MarkDecorator:
    """Run a test for each action, kind and place: in the short profile with one place each, in turns."""
    found: list[Any] = []
    for (a, action), (k, kind), (p, place) in itertools.product(*map(enumerate, (actions, kinds, places))):
        marks = [*place_of(place).marks, *([pytest.mark.long] if (a + k + p) % len(places) else [])]
        found.append(pytest.param(action, kind, PLACES[place], id=f"{action}, {kind}, {place}", marks=marks))
    return pytest.mark.parametrize(("action", "kind", "place"), found)


@functools.cache
def after_switches(code: types.CodeType) -> set[int]:
    """Return where Python is in a function when it has switched to another thread and back."""
    found = set[int]()
    for switch, following in itertools.pairwise(dis.get_instructions(code)):
        if switch.opname.startswith(SWITCHES):
            found.add(switch.argval if switch.opname.startswith("JUMP") else following.offset)
    return found


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


def at_each_moment(run: Callable[[int], Watched], *, few: bool) -> None:
    """Call `run` with the numbers of moments that it meets, at equal distances: in the short profile each 16th.

    Of a few each 48th: with workers, for example, moments differ between two runs anyway. At least three are tried.
    """
    run(sys.maxsize)  # the first time has moments of its own
    numbers = {moment: number for number, moment in reversed(list(enumerate(run(sys.maxsize).moments)))}
    assert len(numbers) > 10
    distance = (3 if few else 1) * (1 if IS_LONG else 16)
    for number in list(numbers.values())[:: min(distance, len(numbers) // 3)]:
        run(number)


def dataset_of(kind: str, count: int = 40) -> ps.Dataset:
    """Return batches of numbers."""
    return DATASETS[kind](ps.range(count).map(same))


def contents(batches: Iterable[Any]) -> list[list[int]]:
    """Return batches as lists."""
    return [batch.tolist() for batch in batches]


def batches_of(iterator: ps.LoaderIterator[Any]) -> list[list[int]]:
    """Return the batches of a pass, none if it is not the current one."""
    try:
        return contents(iterator)
    except ClosedError:
        return []


def third_state(dataset: ps.Dataset) -> dict[str, Any]:
    """Return the state after three batches."""
    with ps.Loader(dataset) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        return loader.state_dict()


class Reading(Watched):
    """Reads two batches of a loader while another thread acts.

    Attributes:
        dataset: the loader's dataset.
        expected: the batches of an epoch.
        batches: the batches that were read.
    """

    def __init__(self, loader: ps.Loader[Any], dataset: ps.Dataset, moment: int, act: Callable[[], object]) -> None:
        """Read; the other thread acts at the moment with a number, if there is one."""
        self.dataset = dataset
        self.expected = contents(dataset)
        self.batches: list[list[int]] = []
        self._iterator = iter(loader)
        super().__init__(moment, act, self._read)

    def _read(self) -> None:
        for _ in range(2):
            self.batches.append(next(self._iterator).tolist())

    def check(self) -> None:
        """Check that the batches are the dataset's, and two, or that there was a ClosedError."""
        assert self.batches == self.expected[: len(self.batches)], self.moments[self._moment]
        assert len(self.batches) == 2 or isinstance(self.error, ClosedError)

    def check_closed(self) -> None:
        """Check that the iterator was retired."""
        with pytest.raises(ClosedError):
            next(self._iterator)


def is_complete_or_closed(_: ps.Loader[Any], reading: Reading) -> None:
    """Check that the thread that reads got its batches, or is told that the loader was closed."""
    assert reading.error is None or str(reading.error) == "the loader was closed"


def goes_on_at_the_state(loader: ps.Loader[Any], reading: Reading) -> None:
    """Check that the loader is at the state's step, whatever the thread that reads was delivered."""
    assert loader.step == 3
    assert contents(loader) == reading.expected[3:]


def has_begun(loader: ps.Loader[Any], reading: Reading) -> None:
    """Check that the newer iterator delivers a whole epoch, and counts its batches alone."""
    before = loader.steps_done
    assert contents(reading.result) == reading.expected
    assert loader.steps_done - before == len(reading.expected)


Check = Callable[[ps.Loader[Any], Reading], None]
ACTIONS: dict[str, tuple[Callable[[ps.Loader[Any], dict[str, Any]], object], Check]] = {
    "closes": (lambda loader, _: loader.close(), is_complete_or_closed),
    "loads a state": (lambda loader, state: loader.load_state_dict(state), goes_on_at_the_state),
    "begins a pass": (lambda loader, _: iter(loader), has_begun),
}


def read_at_each_moment(action: str, kind: str, place: dict[str, Any], make: type[ps.Loader[Any]] = ps.Loader) -> None:
    """Read batches as often as there are moments; each time another thread acts at one."""
    dataset = dataset_of(kind)
    state = third_state(dataset)
    act, check = ACTIONS[action]

    def read(moment: int) -> Reading:
        with make(dataset, **place) as loader:
            reading = Reading(loader, dataset, moment, lambda: act(loader, state))
            reading.check()
            if reading.is_met:
                check(loader, reading)
        reading.check_closed()
        return reading

    at_each_moment(read, few=bool(place))


@cases(ACTIONS, DATASETS, "inline", "threads", "isolated")
def test_another_thread_may_act_while_batches_are_read(action: str, kind: str, place: dict[str, Any]) -> None:
    """The thread that reads gets its batches, or a ClosedError, and the other thread what it asked for."""
    read_at_each_moment(action, kind, place)


@in_places("inline", "threads", "isolated")
def test_another_thread_may_close_a_loader_that_places_batches_ahead(place: dict[str, Any]) -> None:
    """The batches that were placed ahead aren't dropped while the thread that reads uses them."""
    torch = pytest.importorskip("penstock.torch")
    read_at_each_moment("closes", "indexed", place, torch.Loader)


@cases(["begins a pass", "loads a state", "closes"], ["indexed", "in order"], "inline", "threads", "isolated")
def test_another_thread_may_act_while_a_pass_is_begun(action: str, kind: str, place: dict[str, Any]) -> None:
    """Of two passes one delivers the whole epoch, and counts its batches; a state decides where the pass begins.

    If the pass was begun before the state was loaded, or the loader is closed, it delivers nothing.
    """
    dataset = dataset_of(kind)
    expected, state = contents(dataset), third_state(dataset)

    def begin(moment: int) -> Watched:
        begun: list[ps.LoaderIterator[Any]] = []
        with ps.Loader(dataset, **place) as loader:
            next(iter(loader))
            watched = Watched(moment, lambda: ACTIONS[action][0](loader, state), lambda: begun.append(iter(loader)))
            if not watched.is_met:
                pass
            elif action == "begins a pass":
                assert sorted([batches_of(begun[0]), batches_of(watched.result)]) == [[], expected]
                assert (loader.epoch, loader.steps_done) == (1, len(expected) + 1)
            elif action == "loads a state":
                assert (batches_of(begun[0]) or batches_of(iter(loader))) == expected[3:]
                assert (loader.epoch, loader.steps_done) == (0, len(expected))
            else:
                assert [batches_of(iterator) for iterator in begun] == [[]] * len(begun)
        assert watched.error is None or (action == "closes" and "the loader was closed" in str(watched.error))
        return watched

    at_each_moment(begin, few=bool(place))


@in_places("inline", "threads")
def test_another_thread_may_close_the_loader_while_an_iterator_loads_a_state(place: dict[str, Any]) -> None:
    """The iterator delivers nothing afterwards, and says why."""
    dataset = dataset_of("in order")

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

    at_each_moment(set_state, few=bool(place))


def seen(loader: ps.Loader[Any]) -> dict[str, Any]:
    """Return what a thread may ask a loader at any moment."""
    names = ("epoch", "step", "position", "steps_done")
    return {**{name: getattr(loader, name) for name in names}, "state": loader.state_dict()}


@cases(["looks"], DATASETS, "inline", "isolated", "out of order")
def test_another_thread_may_look_while_an_epoch_is_read(action: str, kind: str, place: dict[str, Any]) -> None:
    """It sees the loader, and its state, as they are after one of the batches, or in the next epoch."""
    del action
    dataset = dataset_of(kind, 12)
    expected = contents(dataset)

    def read(moment: int) -> Watched:
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            watched = Watched(moment, lambda: seen(loader), lambda: list(batches))
            assert watched.error is None
            if watched.is_met:
                assert watched.result["epoch"] == 0
                assert watched.result["step"] in range(3)
                assert watched.result["position"] in range(13)
                other = ps.Loader(dataset)
                other.load_state_dict(watched.result["state"])
                done, epoch = other.steps_done, other.epoch
                assert (done, epoch) in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1))
                left, whole = contents(other), expected[done if epoch == 0 else 0 :]
                assert left == whole or ("ordered" in place and len(left) == len(whole))
        return watched

    at_each_moment(read, few=bool(place))


MOVES: dict[str, Callable[[ps.Loader[Any], Any], object]] = {
    "reads to the end": lambda _, batches: list(batches),
    "begins a pass": lambda loader, _: iter(loader),
    "reads the next epoch": lambda loader, _: list(iter(loader)),
    "loads a state": lambda loader, _: loader.load_state_dict(loader.state_dict(step=loader.steps_done - 1)),
    "goes to a step": lambda loader, _: loader.seek(loader.steps_done - 1),
    "goes to a position": lambda loader, _: loader.seek(position=0, epoch=3),
}


@cases(MOVES, ["indexed", "in order"], "inline", "out of order")
def test_a_thread_may_look_while_another_one_moves_the_loader(action: str, kind: str, place: dict[str, Any]) -> None:
    """It sees the loader as it was before, as it is afterwards, or, while steps are read, after one of them."""
    dataset = dataset_of(kind, 1200)  # more steps than a loader remembers

    def look(moment: int) -> Watched:
        found: list[dict[str, Any]] = []
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            next(batches)
            next(batches)
            before = seen(loader)
            watched = Watched(moment, lambda: MOVES[action](loader, batches), lambda: found.append(seen(loader)))
            if watched.error is not None:
                raise watched.error
            after = seen(loader)
        if watched.is_met:
            for name, value in found[0].items():
                assert value in (before[name], after[name]) or "reads" in action, name
            with ps.Loader(dataset) as other:
                other.load_state_dict(found[0]["state"])
        return watched

    at_each_moment(look, few=bool(place) or "reads" in action)

"""The fold `combine`: an object of the user's that takes elements in order and gives others.

The user's object may hold data of many elements, and a state may not. So the object says how many of the elements that
were added last it still needs, and a resume adds these to a new object. That is exact if the object keeps one promise:
a new object to which they were added gives, from then on, what this one gives. The promise can't be proved, but it is
often seen to be broken (`CheckedCombiner`): `held` then rises by more than one with an element, or is another number
after a resume. Pickling the object instead was rejected: the state would hold data, change with the version of the
user's class, and have no bound.

A token of the stage is (where reading begins, how many elements from there on were held, how many elements of the next
list were given), and where one of these numbers is not 0, also where the last element that was taken in ends. The next
list is that of the element after the held ones, or, at the end, of `flush()`. An object that doesn't say what it holds
is held to need all elements since the beginning.
"""

import copy
import itertools
import time
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from dataclasses import replace
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, TypeGuard, cast

import numpy as np

from penstock._caught import add_note, is_interrupt
from penstock._decisions import COMBINED_ELEMENTS, decide
from penstock._frozen import frozen
from penstock._graph import Element, Location, flushed_ordinal, nested_ordinal, row_seed_position, whereabouts_of
from penstock._independent import independent
from penstock._streaming._check import same_element
from penstock._streaming._fold import Folding, FoldStage
from penstock._streaming._policy import CHECKED_AFTER_RESUME, CHUNK_ELEMENTS, CHUNK_SECONDS
from penstock._streaming._stage import (
    LARGEST,
    ORDINAL,
    Chunk,
    Lazy,
    LocatedElement,
    Token,
    check_enough,
    check_held,
    check_number,
    known,
    no_provenance,
    parts_of,
    refuse,
)
from penstock.errors import GraphError, StateError


@frozen
class UserFold(Folding):
    """The elements that the user's object returns when it is given the parent's in order; `make` makes a new object.

    Each has the location of the element that completed it, and flushed elements have that of the last element. `flush`
    isn't called if nothing is held.
    """

    make: Callable[[], Any]
    name: str

    @property
    def text(self) -> str:
        return f"combine({self.name})"

    @property
    def order_text(self) -> str:
        return "combine"

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        return ((f"combine {self.name}", self.make),)

    @property
    def state_text(self) -> str:
        return (
            "the positions of the elements that wait; they are computed again, all of the epoch's if its object has no "
            "`held`"
        )

    def start(self, below: Token) -> Token:
        return (below, 0, 0)

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        fold = CheckedCombiner(self)
        last: Location | None = None
        for element, location in below:
            last = location
            for number, made in enumerate(fold.add(element, known(location))):
                yield made, replace(location, seed=row_seed_position(location.seed, number))
        if last is not None and fold.held:
            for number, made in enumerate(fold.flush(known(last))):
                ordinal = flushed_ordinal(last.seed.ordinal, number)
                yield made, replace(last, seed=last.seed._replace(ordinal=ordinal))

    def run(self, stage: FoldStage, token: Token) -> Iterator[Chunk]:
        fold = _Fold(self, stage, token)
        at_most, began = decide(COMBINED_ELEMENTS, CHUNK_ELEMENTS), time.perf_counter()
        for chunk in stage.below.run(token[0]):
            for index in range(len(chunk.elements)):
                try:
                    fold.add(chunk, index)
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    yield fold.given()
                    raise
                if fold.count >= at_most or time.perf_counter() - began > CHUNK_SECONDS:
                    yield fold.given()
                    at_most, began = decide(COMBINED_ELEMENTS, CHUNK_ELEMENTS), time.perf_counter()
            yield fold.given()
        fold.flush()
        yield fold.given(is_flushed=True)

    def check_token(self, stage: FoldStage, token: Token) -> None:
        start, held, skip, *last = parts_of(token, 3, 4, of="combine()")
        stage.below.check(start)
        held, skip = (check_number(number, LARGEST, "combine()") for number in (held, skip))
        if bool(held or skip) != bool(last):
            refuse(token, "combine() has the end of the last element where elements are held open")
        if last:
            stage.below.check(last[0])

    def read_to(self, token: Token) -> Token:
        start, _, _, *last = token
        return last[0] if last else start

    def check(self, text: str, below: Iterator[LocatedElement], count: int) -> None:
        _check_resumes(self, text, list(itertools.islice(below, count)))


class CheckedCombiner:
    """A new object of the user's, whose answers are checked.

    Attributes:
        held: how many of the elements that were added last the object needs.
        counts: whether the object itself says so; else it needs all that were added.

    Raises:
        GraphError: it is no such object, or not a new one.
    """

    def __init__(self, step: UserFold) -> None:
        self._step = step
        made: object = step.make()
        if not callable(getattr(made, "add", None)) or not callable(getattr(made, "flush", None)):
            raise GraphError(
                f"the function of step {step.name!r} must return an object with add(element) and flush(); got {made!r}"
            )
        self._made: Any = made
        # Of the class first: a property that raises an AttributeError is there, and its error is the user's to see.
        self.counts = hasattr(type(made), "held") or hasattr(made, "held")
        self.held = 0
        held = self._held(None) if self.counts else 0
        if held:
            raise GraphError(
                f"the function of step {step.name!r} must return a new object each time, which holds nothing; this one "
                f"has held={held}. Make the object in the function"
            )

    def add(self, element: Element, location: Callable[[], Location]) -> list[Element]:
        """Return the elements that the object returns for an element; an error gets a note with the location."""
        try:
            given = self._listed("add", self._made.add(element))
            self.held = self._held(self.held) if self.counts else self.held + 1
        except Exception as error:
            add_note(error, self._whereabouts(location()))
            if isinstance(error, StopIteration):
                raise self._stop_error(error) from error
            raise
        return given

    def flush(self, location: Callable[[], Location]) -> list[Element]:
        """Return the elements that the object returns at the end; an error gets a note with the last location."""
        try:
            return self._listed("flush", self._made.flush())
        except Exception as error:
            add_note(error, f"{self._whereabouts(location())}, the last element before flush()")
            if isinstance(error, StopIteration):
                raise self._stop_error(error) from error
            raise

    def _whereabouts(self, location: Location) -> str:
        return whereabouts_of(self._step.name, location.node, location)

    def _listed(self, method: str, given: object) -> list[Element]:
        if not _is_list_of_elements(given):
            raise GraphError(
                f"{method}() of step {self._step.name!r} must return a list of elements; got a {type(given).__name__}. "
                "Return [] where none is complete, [element] for a single one, and list(elements) for several."
            )
        return independent(list(given))  # a function above may write to its input

    def _held(self, before: int | None) -> int:
        """Return the object's `held`, checked: it rises by at most one with each element."""
        held: object = self._made.held
        if type(held) is int and held >= 0 and (before is None or held <= before + 1):  # mostly so
            return held
        name = self._step.name
        if isinstance(held, bool) or not isinstance(held, SupportsIndex):
            kind = "a method; put @property above it" if callable(held) else repr(held)
            raise GraphError(f"held of step {name!r} must be a whole number of at least 0; got {kind}")
        value = held.__index__()
        if value < 0:
            raise GraphError(f"held of step {name!r} must be a whole number of at least 0; got {value}")
        if before is not None and value > before + 1:
            raise GraphError(
                f"held of step {name!r} may rise by one with an element, since an object that needed {before} elements "
                f"before this one needs no more than {before + 1} after it; got {value}. Count the elements that were "
                "added since the object held nothing"
            )
        return value

    def _stop_error(self, cause: StopIteration) -> RuntimeError:
        error = RuntimeError(f"the object of step {self._step.name!r} raised StopIteration")
        for note in getattr(cause, "__notes__", ()):
            add_note(error, note)
        return error


def _is_list_of_elements(given: object) -> TypeGuard[Iterable[Element]]:
    """Return whether an object is a list, or another sequence that can't be meant as one element."""
    if isinstance(given, list | tuple):
        return not hasattr(cast("object", given), "_fields")  # a named tuple is an element
    is_list = isinstance(given, Sequence | Iterator | ValuesView | KeysView | ItemsView)
    return is_list and not isinstance(given, str | bytes | bytearray | memoryview)


_Ref: TypeAlias = tuple[Sequence[Token], int]
"""A token of the stage below: which one of some."""


class _Moment(NamedTuple):
    """The elements that are held open between two elements.

    Attributes:
        oldest: the start of the oldest element held, or of the next one where none is.
        held: how many are held.
        last: the after of the last element that was taken in.
    """

    oldest: _Ref
    held: int
    last: _Ref

    def token(self) -> Token:
        """Return the token of this moment."""
        start = _at(self.oldest)
        return (start, self.held, 0, _at(self.last)) if self.held else (start, 0, 0)

    def within(self, skip: int, last: _Ref) -> Token:
        """Return the token within the next list, of which `skip` elements were given.

        Args:
            skip: 0 for the token of this moment.
            last: the after of the element whose adding gives the list.
        """
        return (_at(self.oldest), self.held, skip, _at(last)) if skip else self.token()


def _at(ref: _Ref) -> Token:
    tokens, index = ref
    return tokens[index]


class _Given(NamedTuple):
    """A list that the object gave.

    Attributes:
        elements: those of it that were not given before the token.
        source: which element of the newest chunk gave it, by being added or as the last one.
        skip: how many elements of the list were given before the token.
        before: the moment before the list was given.
        last: the after of the element.
        following: the moment after the list.
    """

    elements: list[Element]
    source: int
    skip: int
    before: _Moment
    last: _Ref
    following: _Moment

    def token(self, number: int) -> Token:
        """Return the token from which reading starts with element `number` of `elements`, or after all of them."""
        if number == len(self.elements):
            return self.following.token()
        return self.before.within(self.skip + number, self.last)


class _Fold:
    """A new object of the user's, the elements that it holds, and its results that aren't yielded yet."""

    def __init__(self, step: UserFold, stage: FoldStage, token: Token) -> None:
        self._stage = stage
        self._object = CheckedCombiner(step)
        self._name = step.name
        self._start, held, skip, *self._last = token
        self._held_before: int = held
        self._replayed = 0
        self._skip: int = skip
        self._starts: deque[_Ref] = deque()  # of the elements held, where the object counts them
        first: _Ref = ((self._start,), 0)
        self._now = _Moment(first, 0, first)
        self._provenance, self._index = no_provenance(), 0  # the newest chunk's, and which of its elements is newest
        self._given: list[_Given] = []
        self.count = 0
        """The number of elements that were added, and that the object has returned, since `given`."""

    def add(self, chunk: Chunk, index: int) -> None:
        """Add an element of a chunk to the object."""
        self.count += 1
        self._provenance, self._index = chunk.provenance, index
        given = self._object.add(chunk.elements[index], self._location)
        before, last = self._now, (chunk.afters, index)
        self._now = _Moment(self._oldest((chunk.starts, index), last), self._object.held, last)
        if self._replayed < self._held_before:
            self._replayed += 1
            if self._replayed == self._held_before:
                self._check_replayed()
            return
        if self._skip:
            check_held(_at(last), self._last[0], "what an object of combine() gave")
        if given or self._skip:
            self._keep(given, before)

    def flush(self) -> None:
        """Take the elements that the object returns at the end."""
        if self._replayed < self._held_before:
            raise StateError(
                f"the state holds {self._held_before:,} elements open in combine(), of which this dataset has "
                f"{self._replayed:,}. Load it into the dataset that it was saved from."
            )
        if not self._now.held:
            if self._skip:
                check_enough(self._skip, 0, "what an object of combine() gave")
            return
        given = self._object.flush(self._location)
        before = self._now
        self._now = _Moment(before.last, 0, before.last)
        if self._skip:
            check_held(_at(before.last), self._last[0], "what an object of combine() gave")
        self._keep(given, before)

    def _oldest(self, start: _Ref, last: _Ref) -> _Ref:
        """Return the start of the oldest element that is held, once an element was added."""
        held = self._object.held
        if not self._object.counts:
            return ((self._start,), 0)
        self._starts.append(start)
        while len(self._starts) > held:
            self._starts.popleft()
        return self._starts[0] if held else last

    def _check_replayed(self) -> None:
        """Raise a StateError if a new object, given the held elements, doesn't hold as many as the old one."""
        held = self._object.held
        if not self._skip:
            check_held(_at(self._now.last), self._last[0], "what an object of combine() holds")
        if held != self._held_before and self._start != self._stage.below.start():  # from the beginning on all is exact
            raise StateError(
                f"the object of step {self._name!r} held {self._held_before:,} elements where the state was saved; a "
                f"new one to which these were added has held={held:,}. Its class has changed, or its `held` left out "
                "elements that decide what it holds: count all since it held nothing."
            )

    def _keep(self, given: list[Element], before: _Moment) -> None:
        """Keep a list that the object gave, less the elements that were given before the token."""
        skip, self._skip = self._skip, 0
        if skip:
            check_enough(skip, len(given), "what an object of combine() gave")
        self.count += len(given)
        self._given.append(_Given(given[skip:], self._index, skip, before, self._now.last, self._now))

    def _location(self) -> Location:
        return self._stage.location(self._provenance, self._index)

    def given(self, *, is_flushed: bool = False) -> Chunk:
        """Return the elements that the object has returned since the last call.

        All of it was given when elements of the newest chunk were added; or at the end, which is `is_flushed`.
        """
        lists, self._given, self.count = self._given, [], 0
        counts = [len(each.elements) for each in lists]
        which: list[int] = np.repeat(np.arange(len(lists)), counts).tolist()
        numbers = [number for each in lists for number in range(len(each.elements))]
        provenance = self._provenance[np.repeat(np.array([each.source for each in lists], np.int64), counts)]
        ordinals: list[int] = provenance[:, ORDINAL].tolist()
        rows = [lists[number].skip + row for number, row in zip(which, numbers, strict=True)]
        ordinal_of = flushed_ordinal if is_flushed else nested_ordinal
        provenance[:, ORDINAL] = list(map(ordinal_of, ordinals, rows))
        starts = Lazy(len(numbers), lambda index: lists[which[index]].token(numbers[index]))
        afters = Lazy(len(numbers), lambda index: lists[which[index]].token(numbers[index] + 1))
        return Chunk([element for each in lists for element in each.elements], provenance, starts, afters)


def _check_resumes(step: UserFold, text: str, below: list[LocatedElement]) -> None:
    """Resume a new object after each of some elements, and compare what follows with an undisturbed run."""
    held: list[int] = []
    fold = CheckedCombiner(step)
    for element, location in below:
        fold.add(copy.deepcopy(element), known(location))
        held.append(fold.held)
    for number in range(len(below)):
        undisturbed = _given(step, below, 0, number + 1)
        resumed = _given(step, below, number + 1 - held[number], number + 1)
        if not same_element(undisturbed, resumed):
            raise GraphError(
                f"the object of step {step.name!r} in {text} doesn't resume: after {number + 1} elements "
                f"it says that it needs the last {held[number]}, and a new object to which these were added then gives "
                "something else. Count in held all elements that decide what follows, and let the object depend on "
                "nothing but the elements that are added."
            )


def _given(step: UserFold, below: list[LocatedElement], start: int, stop: int) -> list[Any]:
    """Return what a new object gives from element `stop` on, once elements [start, stop) were added; and its `held`."""
    fold = CheckedCombiner(step)
    found: list[Any] = []
    for number, (element, location) in enumerate(below[start : stop + CHECKED_AFTER_RESUME], start):
        given = fold.add(copy.deepcopy(element), known(location))
        if number >= stop:
            found += [*copy.deepcopy(given), fold.held]
    last = below[-1][1]
    return [*found, fold.held, *(fold.flush(known(last)) if fold.held else [])]

"""The user's own fold: an object that takes elements in order and gives others. The definition.

The user's object may hold data of many elements, and a state may not. So the object says how many of the elements that
were added last it still needs, and a resume adds these to a new object. That is exact if the object keeps one promise:
a new object to which they were added gives, from then on, what this one gives. The promise can't be proved, but it is
often seen to be broken: `held` then rises by more than one with an element, or is another number after a resume.
Pickling the object instead was rejected: the state would hold data, change with the version of the user's class, and
have no bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, SupportsIndex

from penstock._graph import Element, Location, UserFold, flushed_ordinal, row_seed_position, whereabouts
from penstock.errors import GraphError

LocatedElement = tuple[Element, Location]


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
            error.add_note(whereabouts(self._step, location()))
            if isinstance(error, StopIteration):
                raise self._stop_error(error) from error
            raise
        return given

    def flush(self, location: Callable[[], Location]) -> list[Element]:
        """Return the elements that the object returns at the end; an error gets a note with the last location."""
        try:
            return self._listed("flush", self._made.flush())
        except Exception as error:
            error.add_note(f"{whereabouts(self._step, location())}, the last element before flush()")
            if isinstance(error, StopIteration):
                raise self._stop_error(error) from error
            raise

    def _listed(self, method: str, given: object) -> list[Element]:
        kind = type(given).__name__
        if isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__"):
            raise GraphError(
                f"{method}() of step {self._step.name!r} must return a list of elements; got a {kind}. "
                "Return [] where none is complete, and [element] for a single one."
            )
        elements: Any = given
        return list(elements)

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
        for note in cause.__notes__:
            error.add_note(note)
        return error


def combined(step: UserFold, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    """Yield the elements that the user's object returns, each with the location of the element that completed it.

    Flushed elements have the location of the last element. `flush` isn't called if nothing is held.
    """
    fold = CheckedCombiner(step)
    last: Location | None = None
    for element, location in below:
        last = location
        for number, made in enumerate(fold.add(element, at(location))):
            yield made, replace(location, seed=row_seed_position(location.seed, number))
    if last is not None and fold.held:
        for number, made in enumerate(fold.flush(at(last))):
            ordinal = flushed_ordinal(last.seed.ordinal, number)
            yield made, replace(last, seed=last.seed._replace(ordinal=ordinal))


def at(location: Location) -> Callable[[], Location]:
    """Return a function that returns a location that is known."""
    return lambda: location

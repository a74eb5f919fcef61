"""Applying a step's function: to one element, as the definition has it, and to a block, which must equal it.

A user's own exception passes through with its type and traceback; a note says which step, epoch, position and key.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, assert_never, cast

from penstock._caught import Caught, raised_by_handler
from penstock._frozen import frozen
from penstock._graph._jax_keys import key_of, keys_of
from penstock._graph._length import length
from penstock._graph._locate import source_of
from penstock._graph._nodes import Element, Filter, FlatMap, Map, Node, Origin, Read, Substitute, UserFold
from penstock._graph._rng import StepGenerator, seeded_globals
from penstock._graph._seed_position import Integers, SeedPosition, SeedPositions, indices
from penstock._seeds import derive, derive_block
from penstock.errors import InternalError
from penstock.events import Event, Observer, Skipped, Substituted
from penstock.sources._as_source import describe_key
from penstock.sources._reading import RETRY_WAITS_SECONDS, is_transient, read_records
from penstock.sources._source import Keys, Record, Source


class _Dropped:
    """The mark of an element that a filter or `on_error="skip"` left out of a block."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"  # a copy of the mark is the mark


DROPPED: Final = _Dropped()


def _ignore(event: Event) -> None:
    """Observe nothing."""
    del event


def _nothing_yet(step: str, epoch: int, position: int) -> int:
    """Count nothing."""
    del step, epoch, position
    return 0


def _count_nothing(node: Node, kept: int, dropped: int) -> None:
    """Count nothing."""
    del node, kept, dropped


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Context:
    """What an evaluation has at hand: a generator of its own thread, and whom to tell."""

    generator: StepGenerator = field(default_factory=StepGenerator)
    observe: Observer = _ignore
    substituted: Callable[[str, int, int], int] = _nothing_yet
    """How many elements a step has replaced so far, besides the one at an epoch and position; for budgets."""
    filtered: Callable[[Node, int, int], None] = _count_nothing
    """Told what filters kept and left out, where that is taken in: a filter, or a node with filters that are part of
    it; how many elements it gave; how many its filters left out."""
    deadly: Mapping[tuple[int, ...], Exception] = field(default_factory=dict[tuple[int, ...], Exception])
    """What is told of elements that processes die of: by epoch and position below the batch, or, of what is read in
    order, by epoch, position and the leaf's number."""
    read: Callable[[Source, Keys], list[Record]] = read_records
    """Returns the records of keys of a source: those that were read ahead, or read here and now."""


@frozen
class Location:
    """Where one element stands at a step: its own coordinates there, its seed position, and its record's key.

    `part` names the part of a mixture with positions that has the record. Where elements are read in order, the
    coordinates are those at `node`, the leaf that it comes from, below which `part` counts, and `component` names the
    parts of joints in between; `stream` is then what sets its random streams apart from other parts'.
    """

    epoch: int
    position: int
    seed: SeedPosition
    key: int
    node: Node | None = None
    component: str = ""
    salt: int = 0
    part: str = ""

    @property
    def address(self) -> SeedPosition:
        """The address of the element's random streams below a step's seed."""
        return self.seed._replace(position=self.seed.position ^ self.salt)

    @property
    def path(self) -> str:
        """The names of all parts on the way to the record, as "web/en"."""
        return "/".join(filter(None, (self.component, self.part)))


def salt_of(component: str) -> int:
    """Return what is mixed into the seed positions of a part of a mixture; 0 outside of any."""
    return derive(0, "component", component) >> 2 if component else 0


class Locations(Protocol):
    """The places of a block's elements, looked up only where they are needed."""

    @property
    def are_plain(self) -> bool:
        """Whether seed positions are the addresses of random streams as they are."""
        ...

    def at(self, index: int, /) -> Location:
        """Return the place of the block's element `index`."""
        ...

    def seeds(self) -> SeedPositions:
        """Return the seed positions of the block's elements."""
        ...

    def keys(self) -> Integers:
        """Return the keys of the block's elements."""
        ...

    def components(self) -> list[str]:
        """Return the parts of a mixture that the block's elements come from."""
        ...

    def indices(self) -> list[int | None]:
        """Return the numbers of the block's elements over all epochs, as `Origin.index` has them."""
        ...


ElementAt = Callable[[Node, int, int, Context], Element]
"""The definition's evaluation of one element, handed in where a substitute has to be computed."""


def apply_one(step: Map, element: Element, location: Location, context: Context, element_at: ElementAt) -> Element:
    """Return the step's function of one element, or DROPPED; the definition of what a `Map` does."""
    try:
        return _call(step, element, location, context)
    except Exception as error:
        if raised_by_handler(error):
            raise
        return apply_again(step, element, error, location, context, element_at)


def apply_again(
    step: Map, element: Element, error: Exception, location: Location, context: Context, element_at: ElementAt
) -> Element:
    """Return what `apply_one` does once the step's function has raised an error for an element.

    The function is called again only where the error may pass: it may have written to the element.
    """
    try:
        for seconds in RETRY_WAITS_SECONDS:
            if not is_transient(error):
                break
            threading.Event().wait(seconds)
            with Caught(Exception) as caught:
                return _call(step, element, location, context)
            error = cast("Exception", caught.taken())
        if isinstance(error, StopIteration):
            error = _stop_error(step, error)
        return after_error(step, error, location, context, element_at)
    finally:
        del error  # else its traceback holds it, by this frame, and with it the loader


def apply_block(
    step: Map, elements: Sequence[Element], locations: Locations, context: Context, element_at: ElementAt
) -> list[Element]:
    """Return `apply_one` of every element of a block."""
    results: list[Element] = []
    apply_into(results, step, elements, locations, context, element_at)
    return results


def apply_into(
    results: list[Element],
    step: Map,
    elements: Sequence[Element],
    locations: Locations,
    context: Context,
    element_at: ElementAt,
) -> None:
    """Add `apply_one` of every element of a block to an empty list; if one raises, of those before it.

    The function is called once for each element, since it may write to it.
    """
    if step.form != "globals" and (step.form != "origin" or locations.are_plain):
        with Caught(Exception) as caught:
            _apply_at_once(results, step, elements, locations, context)
        if caught.error is not None and elements:
            number = len(results)
            error = cast("Exception", caught.taken())
            try:
                results.append(apply_again(step, elements[number], error, locations.at(number), context, element_at))
            finally:
                del error  # likewise
    left = range(len(results), len(elements))
    results.extend(apply_one(step, elements[each], locations.at(each), context, element_at) for each in left)


def _apply_at_once(
    results: list[Element], step: Map, elements: Sequence[Element], locations: Locations, context: Context
) -> None:
    """Add the function of every element to a list, until one raises, in one loop: Python calls it there at no cost."""
    function, add = step.function, results.append
    match step.form:
        case "none" | "globals":
            for element in elements:
                add(function(element))
        case "generator":
            streams = context.generator.streams(step.seed, locations.seeds())
            for element, rng in zip(elements, streams, strict=True):
                add(function(element, rng))
        case "seed":
            seeds = derive_block(step.seed, *locations.seeds()).tolist()
            for element, seed in zip(elements, seeds, strict=True):
                add(function(element, seed))
        case "key":
            keys = keys_of(derive_block(step.seed, *locations.seeds()))
            for element, key in zip(elements, keys, strict=True):
                add(function(element, key))
        case "origin":
            seeds = locations.seeds()
            columns = (seeds.epochs, seeds.positions, locations.keys(), derive_block(step.seed, *seeds), seeds.ordinals)
            origins = map(Origin, *(column.tolist() for column in columns), locations.components(), locations.indices())
            for element, origin in zip(elements, origins, strict=True):
                add(function(element, origin))
        case _:
            assert_never(step.form)


def _call(step: Map, element: Element, location: Location, context: Context) -> Element:
    match step.form:
        case "none":
            return _no_stop_iteration(step, step.function, element)
        case "generator":
            return _no_stop_iteration(step, step.function, element, context.generator.at(step.seed, location.address))
        case "seed":
            return _no_stop_iteration(step, step.function, element, derive(step.seed, *location.address))
        case "key":
            key = key_of(derive(step.seed, *location.address))
            return _no_stop_iteration(step, step.function, element, key)
        case "globals":
            with seeded_globals(derive(step.seed, *location.address)):
                return _no_stop_iteration(step, step.function, element)
        case "origin":
            return _no_stop_iteration(step, step.function, element, origin_of(step, location))
        case _:
            assert_never(step.form)


def _no_stop_iteration(step: Map, function: Callable[..., Element], *arguments: Any) -> Element:  # noqa: ANN401 - user code
    """Call the function; a StopIteration would silently end an iteration further up, so it becomes an error."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise _stop_error(step, error) from error


def _stop_error(step: Map, cause: StopIteration) -> RuntimeError:
    error = RuntimeError(f"the function of step {step.name!r} raised StopIteration")
    error.__cause__ = cause
    return error


def origin_of(step: Map, location: Location) -> Origin:
    """Return what `map_with_origin` hands over for the element at `place`."""
    epoch, position, ordinal = location.seed
    (index,) = indices(location.node or step.parent, [epoch], [position])
    return Origin(epoch, position, location.key, derive(step.seed, *location.address), ordinal, location.path, index)


def after_error(step: Map, error: Exception, location: Location, context: Context, element_at: ElementAt) -> Element:
    """Follow the step's `on_error`: raise with a note, drop the element, or take another position's."""
    match step.on_error:
        case "raise":
            error.add_note(whereabouts(step, location))
            try:
                raise error
            finally:
                del error  # else its traceback holds it, by this frame, and with it the loader
        case "skip":
            context.observe(Skipped(step.name, *_where(location), _text(error)))
            return DROPPED
        case Substitute(attempts=attempts, budget=budget):
            if budget is not None and context.substituted(step.name, *location.seed[:2]) >= budget:
                error.add_note(f"{whereabouts(step, location)}; the budget of {budget} substitutions is used up")
                try:
                    raise error
                finally:
                    del error  # likewise
            return _substitute(step, attempts, _text(error), location, context, element_at)
        case _:
            assert_never(step.on_error)


def _substitute(
    step: Map, attempts: int, reason: str, location: Location, context: Context, element_at: ElementAt
) -> Element:
    """Return the step's element of another position of the epoch, chosen by hash of the seed position."""
    # The parent is indexable: verified when the step was described.
    count = length(step.parent) or 0
    bare = Map(step.parent, step.function, step.name, step.seed, step.form)
    for attempt in range(attempts):
        position = derive(step.seed, "substitute", *location.seed, attempt) % count
        try:
            element = element_at(bare, location.epoch, position, context)
        except Exception as error:
            if attempt + 1 < attempts and not raised_by_handler(error):
                continue
            error.add_note(f"{whereabouts(step, location)}; {attempts} substitutes failed too")
            raise
        context.observe(Substituted(step.name, *_where(location), reason, position))
        return element
    raise InternalError("a substitute is tried for once at least")


def whereabouts(step: Map | Filter | FlatMap | UserFold, location: Location) -> str:
    """Return which step, epoch, position and record an error is about, the record as its source describes it."""
    source = source_of(location.node or step, location.part)
    record = describe_key(source.source, location.key) if isinstance(source, Read) else f"key {location.key}"
    part = f" of {location.path!r}" if location.path else ""
    return f"in step {step.name!r} at epoch {location.seed.epoch}, position {location.seed.position}, {record}{part}"


def _where(location: Location) -> tuple[int, int, int]:
    return location.seed.epoch, location.seed.position, location.key


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

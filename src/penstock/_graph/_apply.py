"""Application of a step's function: to one element (the definition), and to a block, with equal results.

The `Context` has the tools of one thread's evaluations, and a `Location` the coordinates of one element, for its random
stream, its `Origin` and its error notes.

A function may fail, and may write to its input. The three answers to a failure (`on_error=`) must be the same for one
element, for a block on a thread, and in a worker process, though a block is one loop over the function.

- A block is computed in one loop without a `try` for each element, which costs nothing until an error occurs. The
  results so far are kept, the failing element alone goes the way of `apply_again`, and the rest is applied one by one.
  The block isn't computed again, since the function may have changed its elements.
- A function object with a method `apply_block` computes a block in one call, and changes no element. If it raises, the
  loop follows from the first element on, so the definition decides which element fails, and how.
- "raise": the user's exception passes through with its type and traceback, and a note with step, epoch, position and
  key. "skip": the result is DROPPED, and an event is sent. `Substitute`: another position of the same epoch is
  evaluated by the definition, so that the result does not depend on the failing block.
- An error that may pass, such as a network timeout, is retried after waits (`sources._reading`); only then is a
  function called again for the same element.
- What an interrupt handler of the user raises is no error of the element: it passes through (`raised_by_handler`).

No frame holds an exception after it is raised (`del error`): its traceback would keep rows, or the loader, alive.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, assert_never, cast

from penstock._caught import Caught, CaughtFailure, add_note, raised_by_handler
from penstock._frozen import frozen
from penstock._graph._coordinates import SeedPosition, SeedPositions, describe_record, indices, locate, seed_position
from penstock._graph._global_draws import GlobalDraws
from penstock._graph._kept_pieces import KeptPieces
from penstock._graph._length import length
from penstock._graph._nodes import Element, Filter, Integers, Map, Node, Origin, Split, Substitute
from penstock._graph._rng import StepGenerator, jax_key, jax_keys, seeded_globals
from penstock._readings import UNREAD, StepTimes
from penstock._seeds import derive, derive_block
from penstock.errors import InternalError, UsageError
from penstock.events import Event, Observer, Replaced, Skipped, Substituted
from penstock.sources import RETRY_WAITS_SECONDS, Keys, Record, Source, is_transient, read_records


class _Dropped:
    """The type of DROPPED, which stands in for an element that `on_error="skip"` leaves out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"  # unpickling returns the one object, so that `is` works


DROPPED: Final = _Dropped()


_FEWEST_AT_ONCE: Final = 2  # elements; a single one is a call of the function itself


def _ignore(event: Event) -> None:
    """Observe nothing."""
    del event


def _nothing_yet(event: Replaced) -> int:
    """Count nothing."""
    del event
    return 0


def _count_nothing(node: Node, kept: int, dropped: int) -> None:
    """Count nothing."""
    del node, kept, dropped


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Context:
    """The tools of one thread's evaluations: a random generator, observers, and a reader of records."""

    generator: StepGenerator = field(default_factory=StepGenerator)
    observe: Observer = _ignore
    substituted: Callable[[Replaced], int] = _nothing_yet
    """Returns how many elements a step has replaced so far, without the one of an event; for budgets."""
    filtered: Callable[[Node, int, int], None] = _count_nothing
    """Called with a filter, or a node that has filters in it, the number of elements that it returned, and the number
    that its filters left out."""
    crashing_rows: Mapping[tuple[int, ...], Exception] = field(default_factory=dict[tuple[int, ...], Exception])
    """The errors of rows that crash worker processes, by (epoch, position below the batch), or, where rows are read in
    order, by (epoch, position, number of the block input). These rows are never computed."""
    draws: GlobalDraws | None = None
    """Finds functions that draw from global generators; None where other threads may draw meanwhile."""
    read: Callable[[Source, Keys], list[Record]] = read_records
    """Returns the records of some keys of a source; records that were read ahead are taken from there."""
    kept: KeptPieces = field(default_factory=KeptPieces)
    """The parts of parent elements that the thread's next blocks may need."""
    times: StepTimes = UNREAD
    """Records the time of each step and block."""
    components: Mapping[int, str] = field(default_factory=dict[int, str])
    """The names of the parts that a step is in, by its identity, as `parts_with_names` returns them."""

    def report(self, event: Event) -> None:
        """Pass an event to the observer."""
        self.kept.events += 1
        self.observe(event)


@frozen
class Location:
    """An element's coordinates, seed position and record, for its random stream, its `Origin` and its error notes.

    Attributes:
        epoch: of the coordinates, at the step's parent; or at `node`, if elements are read in order.
        position: likewise.
        seed: the element's seed position.
        key: of its record.
        node: the block input or stream that the element comes from, if elements are read in order; else None.
        component: the names of the mixture parts between the step and `node`, joined by "/".
        salt: is mixed into the seed position, so that parts of a mixture have different random streams.
        part: the name of the mixture part of the record, below `node` or below the step.
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
        """The names of all mixture parts from the step to the record, joined as in "web/en"."""
        return "/".join(filter(None, (self.component, self.part)))


def location_of(node: Node, epoch: int, position: int) -> Location:
    """Return the location of the element at (epoch, position) of an indexable node."""
    _, part, key = locate(node, epoch, position)
    return Location(epoch, position, seed_position(node, epoch, position), key, part=part)


def salt_of(component: str) -> int:
    """Return the number that is mixed into the seed positions of a mixture part; 0 outside of mixtures."""
    return derive(0, "component", component) >> 2 if component else 0


class Locations(Protocol):
    """The locations of a block's elements, computed only when a function or an error needs them."""

    @property
    def are_plain(self) -> bool:
        """Whether no part's salt is mixed into the seed positions."""
        ...

    def at(self, index: int, /) -> Location:
        """Return the location of the block's element `index`."""
        ...

    def seeds(self) -> SeedPositions:
        """Return the seed positions of the block's elements."""
        ...

    def keys(self) -> Integers:
        """Return the keys of the block's elements."""
        ...

    def components(self) -> list[str]:
        """Return the component of each element of the block."""
        ...

    def indices(self) -> list[int | None]:
        """Return the index of each element over all epochs, as `Origin.index`."""
        ...


class BlockFunction(Protocol):
    """A function object that can compute a block of elements in one call."""

    def apply_block(self, elements: Sequence[Element], arguments: Iterable[object] = ..., /) -> Iterable[Element]:
        """Return what the function returns for each element, without changing one.

        Args:
            elements: at least two.
            arguments: the function's second argument for each element, if it has one. A generator is valid until the
                next one is taken.
        """
        ...


ElementAt = Callable[[Node, int, int, Context], Element]
"""`_evaluate.element_at`, as a parameter: that module imports this one."""


def apply_one(step: Map, element: Element, location: Location, context: Context, element_at: ElementAt) -> Element:
    """Return the result of the step's function for one element, or DROPPED: the definition of a `Map`."""
    try:
        return _call(step, element, location, context)
    except Exception as error:
        if raised_by_handler(error):
            raise
        return apply_again(step, element, error, location, context, element_at)


def apply_again(
    step: Map, element: Element, error: Exception, location: Location, context: Context, element_at: ElementAt
) -> Element:
    """Return the result for an element for which the step's function has raised an error.

    The function is called again only if the error may pass, since it may have written to the element.
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
        del error  # else its traceback would hold this frame, and with it the loader


def apply_block(
    step: Map, elements: Sequence[Element], locations: Locations, context: Context, element_at: ElementAt
) -> list[Element]:
    """Return `apply_one` of each element of a block."""
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
    """Add `apply_one` of each element of a block to an empty list; after an error the list has the results before it.

    The function is called once for each element, since it may write to it.
    """
    if hasattr(step.function, "apply_block") and _applied_at_once(results, step, elements, locations, context):
        return
    if step.form != "globals" and (step.form != "origin" or locations.are_plain):
        draws = context.draws if elements else None  # a block without elements shows nothing
        before = None if draws is None else draws.before(step)
        # The loop is here, in the frame that knows the step: a user's traceback is short, and a call less is faster.
        with Caught(Exception) as caught:
            function, add, arguments = step.function, results.append, _arguments(step, locations, context)
            if arguments is None:
                for element in elements:
                    add(function(element))
            else:
                for element, argument in zip(elements, arguments, strict=True):
                    add(function(element, argument))
        if draws is not None and before is not None:
            draws.after(step, before, context.observe)
        if caught.error is not None and elements:
            number = len(results)
            error = cast("Exception", caught.taken())
            try:
                results.append(apply_again(step, elements[number], error, locations.at(number), context, element_at))
            finally:
                del error  # likewise
    left = range(len(results), len(elements))
    results.extend(apply_one(step, elements[each], locations.at(each), context, element_at) for each in left)


def _applied_at_once(
    results: list[Element], step: Map, elements: Sequence[Element], locations: Locations, context: Context
) -> bool:
    """Add the results of the function's `apply_block`; return whether it computed them.

    Raises:
        UsageError: it returned another number of results.
    """
    if step.form == "globals" or (step.form == "origin" and not locations.are_plain) or len(elements) < _FEWEST_AT_ONCE:
        return False
    draws = context.draws
    before = None if draws is None else draws.before(step)
    made: list[Element] = []
    with CaughtFailure() as caught:
        arguments = _arguments(step, locations, context)
        apply = cast("BlockFunction", step.function).apply_block
        made.extend(apply(elements) if arguments is None else apply(elements, arguments))
    if draws is not None and before is not None:
        draws.after(step, before, context.observe)
    if caught.error is not None:
        caught.taken()
        return False
    if len(made) != len(elements):
        raise UsageError(
            f"apply_block of the function of step {step.name!r} must return one result for each element; got "
            f"{len(made)} results for {len(elements)} elements. To leave out elements, use a filter."
        )
    results.extend(made)
    return True


def _arguments(step: Map, locations: Locations, context: Context) -> Iterable[object] | None:
    """Return the second argument of the step's function for each element of a block; None if it has only one."""
    match step.form:
        case "none" | "globals":
            return None
        case "generator":
            return context.generator.streams(step.seed, locations.seeds())
        case "seed":
            seeds: list[int] = derive_block(step.seed, *locations.seeds()).tolist()
            return seeds
        case "key":
            return jax_keys(derive_block(step.seed, *locations.seeds()))
        case "origin":
            at = locations.seeds()
            columns = (at.epochs, at.positions, locations.keys(), derive_block(step.seed, *at), at.ordinals)
            return map(Origin, *(column.tolist() for column in columns), locations.components(), locations.indices())
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
            key = jax_key(derive(step.seed, *location.address))
            return _no_stop_iteration(step, step.function, element, key)
        case "globals":
            with seeded_globals(derive(step.seed, *location.address)):
                return _no_stop_iteration(step, step.function, element)
        case "origin":
            return _no_stop_iteration(step, step.function, element, origin_of(step, location))
        case _:
            assert_never(step.form)


def _no_stop_iteration(step: Map, function: Callable[..., Element], *arguments: Any) -> Element:  # noqa: ANN401 - user code
    """Call the function; a StopIteration becomes an error, since it would silently end an iteration above."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise _stop_error(step, error) from error


def _stop_error(step: Map, cause: StopIteration) -> RuntimeError:
    error = RuntimeError(f"the function of step {step.name!r} raised StopIteration")
    error.__cause__ = cause
    return error


def origin_of(step: Map, location: Location) -> Origin:
    """Return the origin of the element at a location, as `map_with_origin` passes it to its function."""
    epoch, position, ordinal = location.seed
    (index,) = indices(location.node or step.parent, [epoch], [position])
    return Origin(epoch, position, location.key, derive(step.seed, *location.address), ordinal, location.path, index)


def after_error(step: Map, error: Exception, location: Location, context: Context, element_at: ElementAt) -> Element:
    """Follow the step's `on_error`: raise with a note, drop the element, or return the element of another position."""
    match step.on_error:
        case "raise":
            add_note(error, whereabouts(step, location))
            try:
                raise error
            finally:
                del error  # else its traceback would hold this frame, and with it the loader
        case "skip":
            context.report(_skipped(step, location, _text(error), context))
            return DROPPED
        case Substitute(attempts=attempts, budget=budget):
            event = _skipped(step, location, _text(error), context)
            if budget is not None and context.substituted(event) >= budget:
                add_note(error, f"{whereabouts(step, location)}; the budget of {budget} substitutions is used up")
                try:
                    raise error
                finally:
                    del error  # likewise
            return _substitute(step, attempts, event, location, context, element_at)
        case _:
            assert_never(step.on_error)


def _substitute(
    step: Map, attempts: int, event: Skipped, location: Location, context: Context, element_at: ElementAt
) -> Element:
    """Return the step's element at another position of the epoch, chosen by a hash of the seed position."""
    # The verb has checked that the parent is indexable.
    count = length(step.parent) or 0
    bare = Map(step.parent, step.function, step.name, step.seed, step.form)
    for attempt in range(attempts):
        position = derive(step.seed, "substitute", *location.seed, attempt) % count
        try:
            element = element_at(bare, location.epoch, position, context)
        except Exception as error:
            if attempt + 1 < attempts and not raised_by_handler(error):
                continue
            add_note(error, f"{whereabouts(step, location)}; {attempts} substitutes failed too")
            raise
        key = location_of(step.parent, location.epoch, position).key
        place = event.step, event.epoch, event.position, event.key
        context.report(Substituted(*place, event.error, position, key, event.component, event.ordinal))
        return element
    raise InternalError("at least one substitute is tried")


def whereabouts(step: Map | Filter | Split, location: Location) -> str:
    """Return which step, epoch, position and record an error is about, the record as its source describes it."""
    return whereabouts_of(step.name, location.node or step, location)


def whereabouts_of(name: str, node: Node | None, location: Location) -> str:
    """Return `whereabouts` of the step with a name; without a node the record is described by its key."""
    record = f"key {location.key}" if node is None else describe_record(node, location.part, location.key)
    part = f" of {location.path!r}" if location.path else ""
    return f"in step {name!r} at epoch {location.seed.epoch}, position {location.seed.position}, {record}{part}"


def _skipped(step: Map, location: Location, error: str, context: Context) -> Skipped:
    """Return the event of an element that is left out, or that another one is to replace."""
    epoch, position, ordinal = location.seed
    component = "/".join(filter(None, (context.components.get(id(step), ""), location.path)))
    return Skipped(step.name, epoch, position, location.key, error, component, ordinal)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

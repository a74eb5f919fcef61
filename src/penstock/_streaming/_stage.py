"""The protocol of stages, and the values that they pass to each other: chunks, tokens, provenance, locations.

A stage is one step of a dataset that is read in order, opened for an epoch and a rank. It yields *chunks*: consecutive
elements, their provenance, and their tokens.

A *token* is a place from which a stage can start: nested tuples of integers and strings, so that a state holds
positions and never data. Each element has two. A stage that starts at `start` yields this element first; at `after`,
the next one. Tokens don't depend on how elements are divided into chunks. Few tokens are ever used: the loader needs
that of the last delivered batch. So they are made on request (`Lazy`, `Picked`), and a sequence of tokens that are
numbers is a `range`.

The *provenance* is arrays: the input of each element, and its coordinates there. Its `Location` follows on request
(`StreamedLocations`). Above a mixture, elements of different parts may have the same seed position. A hash of the
part's name, the salt, is mixed into it, so that their random streams differ, and a new part doesn't change the streams
of the others.

Guarantees of each stage:
  - `run(token)` yields the elements after the token, each exactly once, in order, however often it is called.
  - Elements before a failing one are yielded before its error is raised. The error ends the iterator; reading continues
    with `run` at the `after` token of the last element taken.
  - A token has positions only. `run` computes the elements that the stage held open again, and no others.
  - `check` accepts every token of the stage, judged by form and ranges, and reads nothing. A token from a state goes
    through `check` first, and all other methods rely on it. If the elements below have changed since, `run` finds out,
    and raises a StateError.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._caught import CaughtFailure
from penstock._frozen import frozen
from penstock._graph import (
    Element,
    Integers,
    Location,
    Node,
    SeedPosition,
    SeedPositions,
    Stream,
    indices,
    key_block,
    locate,
    salt_of,
)
from penstock._readings import StepTimes
from penstock._streaming._policy import MAX_APART
from penstock.errors import InternalError, StateError

Token: TypeAlias = Any
"""An integer, a string, None, or a tuple of tokens. Indexing a sequence of tokens with a slice returns a sequence."""

Provenance: TypeAlias = NDArray[np.int64]
"""int64 of shape (elements, 6): the number of the block input or stream that an element comes from, the epoch and
position there, and the seed position: epoch, position, ordinal. An element made of several has the first one's."""

INPUT: Final = 0
EPOCH: Final = 1
POSITION: Final = 2
SEEDS: Final = slice(3, 6)
ORDINAL: Final = 5


class Chunk(NamedTuple):
    """Consecutive elements; possibly none."""

    elements: list[Element]
    provenance: Provenance
    starts: Sequence[Token]
    afters: Sequence[Token]
    rows: Sequence[Provenance] | None = None
    """Of batches: the provenance of each batch's rows."""
    stacked: Element | None = None
    """Of elements that are consecutive rows of arrays: these arrays, which may have rows of other chunks, too."""
    first_row: int = 0
    """The row of the first element in these arrays."""

    def part(self, start: int, stop: int) -> "Chunk":
        """Return the elements [start, stop)."""
        rows = None if self.rows is None else self.rows[start:stop]
        cut = (self.elements[start:stop], self.provenance[start:stop], self.starts[start:stop], self.afters[start:stop])
        return Chunk(*cut, rows)

    def wrapped(self, wrap: Callable[[Token], Token]) -> "Chunk":
        """Return the chunk with tokens that contain its own."""
        starts, afters, count = self.starts, self.afters, len(self.elements)
        return self._replace(
            starts=Lazy(count, lambda index: wrap(starts[index])),
            afters=Lazy(count, lambda index: wrap(afters[index]), are_light=are_light(afters)),
        )

    def pick(self, kept: NDArray[np.int64], elements: list[Element]) -> "Chunk":
        """Return a chunk of `elements`, which replace those whose numbers are `kept`."""
        numbers: list[int] = kept.tolist()
        rows = None if self.rows is None else [self.rows[number] for number in numbers]
        return Chunk(elements, self.provenance[kept], Picked(self.starts, numbers), Picked(self.afters, numbers), rows)


class Lazy(Sequence[Token]):
    """Tokens that are made on request.

    Args:
        count: the number of tokens.
        make: returns a token, by its index.
        are_light: whether they hold no elements, so that they may be kept unmade, and made in any thread.
    """

    def __init__(self, count: int, make: Callable[[int], Token], *, are_light: bool = False) -> None:
        self._count = count
        self._make = make
        self.are_light = are_light

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Token:
        if isinstance(index, slice):
            return Picked(self, range(*index.indices(self._count)))
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._make(index)


class Picked(Sequence[Token]):
    """The tokens at some numbers of a sequence."""

    def __init__(self, tokens: Sequence[Token], numbers: Sequence[int]) -> None:
        self._tokens = tokens
        self._numbers = numbers
        self.are_light = are_light(tokens)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int | slice) -> Token:
        if isinstance(index, slice):
            return Picked(self._tokens, self._numbers[index])
        return self._tokens[self._numbers[index]]


def are_light(tokens: Sequence[Token]) -> bool:
    """Return whether tokens hold no elements, as `Lazy` says."""
    return not _are_made_on_request(tokens) or tokens.are_light


def _are_made_on_request(tokens: Sequence[Token]) -> "TypeGuard[Lazy | Picked]":
    return type(tokens) is Lazy or type(tokens) is Picked  # with `isinstance` an abstract class takes ten times as long


class LateToken:
    """A token that is made on request, once.

    Most tokens are never requested. Those of a pack take as long as a quarter of the packing, and a loader keeps those
    of its last steps.
    """

    __slots__ = ("_index", "_made", "_tokens")

    def __init__(self, tokens: Sequence[Token], index: int) -> None:
        self._tokens: Sequence[Token] | None = tokens
        self._index = index
        self._made: Token = None

    def made(self) -> Token:
        """Return the token."""
        tokens = self._tokens
        if tokens is not None:
            self._made = tokens[self._index]
            self._tokens = None
        return self._made


def late_token(tokens: Sequence[Token], index: int) -> Token:
    """Return one of some tokens: where that is possible, a `LateToken`, of which `made_token` returns the token."""
    return LateToken(tokens, index) if _are_made_on_request(tokens) and tokens.are_light else tokens[index]


def made_token(token: Token) -> Token:
    """Return a token itself, if it is late."""
    return token.made() if isinstance(token, LateToken) else token


class Group(NamedTuple):
    """Consecutive elements that a stage takes together."""

    elements: list[Element]
    provenance: Provenance
    start: Token
    after: Token
    parts: tuple[tuple[Provenance, Sequence[Provenance] | None], ...]
    """Of each chunk that the elements are from: their provenance, and, of batches, that of their rows."""

    def rows(self) -> list[Provenance] | None:
        """Return the provenance of each batch's rows; None if no element is a batch."""
        if all(rows is None for _, rows in self.parts):
            return None
        return [
            each
            for provenance, rows in self.parts
            for each in (np.split(provenance, len(provenance)) if rows is None else rows)
        ]

    def chunk(self, element: Element) -> Chunk:
        """Return the chunk of the one element that is made of the group."""
        return Chunk([element], self.provenance[:1], (self.start,), (self.after,), [self.provenance])


class Cut(NamedTuple):
    """The elements [first, stop) of a chunk."""

    chunk: Chunk
    first: int
    stop: int


class Pending:
    """A queue of elements, added in chunks and taken in groups of other sizes."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._first = 0  # number of the next element in the first chunk
        self.count = 0

    def add(self, chunk: Chunk) -> None:
        """Add a chunk at the end."""
        if chunk.elements:
            self._chunks.append(chunk)
            self.count += len(chunk.elements)

    def take_stacked(self, count: int) -> tuple[Element, list[Cut]] | None:
        """Take the first `count` elements, if they are consecutive rows of some arrays.

        Returns:
            These rows, and the elements' parts of chunks; None where they are no such rows, and nothing was taken.
        """
        stacked = self._chunks[0].stacked
        if stacked is None:
            return None
        cuts = self._cuts(count)
        row = begin = self._chunks[0].first_row + self._first
        for chunk, first, stop in cuts:
            is_next = chunk.stacked is stacked and chunk.first_row + first == row
            if not is_next:
                return None
            row += stop - first
        self._drop(count, cuts)
        return {name: column[begin:row] for name, column in stacked.items()}, cuts

    def _cuts(self, count: int) -> list[Cut]:
        """Return the parts of chunks that the first `count` elements are."""
        cuts: list[Cut] = []
        first = self._first
        for chunk in self._chunks:
            stop = min(first + count, len(chunk.elements))
            cuts.append(Cut(chunk, first, stop))
            count -= stop - first
            first = 0
            if not count:
                break
        return cuts

    def _drop(self, count: int, cuts: list[Cut]) -> None:
        """Remove the first `count` elements."""
        for chunk, _, stop in cuts:
            self._first = stop % len(chunk.elements)
            if not self._first:
                self._chunks.popleft()
        self.count -= count

    def take(self, count: int) -> Group:
        """Take the first `count` elements; `count` is from 1 to the number of elements in the queue."""
        if not 0 < count <= self.count:
            raise InternalError(f"{count} elements were requested, and {self.count} are pending")
        cuts = self._cuts(count)
        self._drop(count, cuts)
        elements: list[Element] = []
        parts: list[tuple[Provenance, Sequence[Provenance] | None]] = []
        for chunk, first, stop in cuts:
            elements += chunk.elements[first:stop]
            parts.append((chunk.provenance[first:stop], None if chunk.rows is None else chunk.rows[first:stop]))
        provenance = np.concatenate([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
        begin, end = cuts[0], cuts[-1]
        start, after = begin.chunk.starts[begin.first], end.chunk.afters[end.stop - 1]
        return Group(elements, provenance, start, after, tuple(parts))


def groups(chunks: Iterable[Chunk], size: int) -> Iterator[Group]:
    """Yield groups of `size` elements, and at the end a smaller one of the rest, if there is a rest."""
    pending = Pending()
    for chunk in chunks:
        pending.add(chunk)
        while pending.count >= size:
            yield pending.take(size)
    if pending.count:
        yield pending.take(pending.count)


def is_compound(token: Token) -> bool:
    """Return whether a token is a tuple of tokens."""
    return isinstance(token, tuple)


def no_provenance() -> Provenance:
    """Return the provenance of no elements."""
    return np.empty((0, 6), np.int64)


def seeds_of(provenance: Provenance) -> SeedPositions:
    """Return the seed positions in some elements' provenance."""
    return SeedPositions(*(np.ascontiguousarray(column) for column in provenance[:, SEEDS].T))


LARGEST: Final = 1 << 62
"""Above every count and position."""


_SHOWN: Final = 60


class InputProgress(NamedTuple):
    """The part of a block input or stream that was read: `taken` positions, of which the last may be read in part."""

    taken: int
    snapshot: Token = None
    """Of a stream: the snapshot, at or before the position, from which to read it."""
    by_position: bool = False
    """Whether `taken` is a position, as of a stream; else it is a number in the input range."""


class Stage(Protocol):
    """An opened step."""

    def start(self) -> Token:
        """Return the token before the first element."""
        ...

    def run(self, token: Token, /) -> Iterator[Chunk]:
        """Yield the elements after a token."""
        ...

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        """Return the elements that start at the tokens, and their provenance. No other elements are computed."""
        ...

    def check(self, token: Token, /) -> None:
        """Raise a StateError for a token that this stage can't have made."""
        ...

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        """Return how far each input below was read at a token; elements that stages hold open count as read."""
        ...

    def is_exhausted(self, token: Token, /) -> bool:
        """Return whether certainly no element follows a token."""
        ...


@runtime_checkable
class StepStage(Stage, Protocol):
    """A stage with one stage below."""

    @property
    def below(self) -> Stage:
        """The stage that it reads from."""
        ...


class SameTokenStage:
    """The methods of a stage whose tokens are those of the stage below."""

    __slots__ = ()

    below: Stage

    def start(self) -> Token:
        return self.below.start()

    def check(self, token: Token, /) -> None:
        self.below.check(token)

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        return self.below.progress(token)

    def is_exhausted(self, token: Token, /) -> bool:
        return self.below.is_exhausted(token)


@frozen
class TimedStage(SameTokenStage):
    """A stage whose time is recorded as its step's, without that of the steps below."""

    below: Stage
    step: Node
    times: StepTimes

    def run(self, token: Token, /) -> Iterator[Chunk]:
        mark = self.times.begin_around()
        for chunk in self.below.run(token):
            self.times.end_around(self.step, mark, len(chunk.elements))
            yield chunk
            del chunk  # so that its memory can become the next one's
            mark = self.times.begin_around()

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return self.below.reproduce(tokens)


def one_each(stage: Stage, tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
    """Return the first element after each token: `reproduce` of stages that have no shorter way.

    The tokens that a fold held open follow each other closely, so one run serves all of them that it meets. A run for
    each token would open the streams below as often, hundreds of times for one state.
    """
    found: dict[Token, Chunk | None] = dict.fromkeys(tokens)
    for token in sorted(found, key=lambda each: sum(each_input.taken for each_input in stage.progress(each))):
        if found[token] is None:
            with CaughtFailure() as caught:
                _find(stage, token, found)
            if found[token] is None:
                if caught.error is not None:
                    raise caught.taken()
                raise StateError("the state has the token of an element that this dataset doesn't have there")
    chunks = [chunk for chunk in map(found.__getitem__, tokens) if chunk is not None]
    provenance = [chunk.provenance for chunk in chunks]
    return [chunk.elements[0] for chunk in chunks], np.concatenate(provenance) if provenance else no_provenance()


def _find(stage: Stage, token: Token, found: dict[Token, Chunk | None]) -> None:
    """Run a stage from a token on; keep the first element, and those at other tokens as long as they follow closely."""
    missing = sum(chunk is None for chunk in found.values())
    since = 0  # elements since the last one that was kept
    elements = ((chunk, index) for chunk in stage.run(token) for index in range(len(chunk.elements)))
    for number, (chunk, index) in enumerate(elements):
        start = chunk.starts[index] if number else token
        since += 1
        if start in found and found[start] is None:
            found[start] = chunk.part(index, index + 1)
            missing, since = missing - 1, 0
        if not missing or since > MAX_APART:
            return


def parts_of(token: Token, *counts: int, of: str) -> tuple[Token, ...]:
    """Return a token that is a tuple of one of some lengths, else raise a StateError."""
    parts: tuple[Token, ...] = token if is_compound(token) else ()
    if not is_compound(token) or len(parts) not in counts:
        refuse(token, f"{of} has a list of {' or '.join(map(str, counts))}")
    return parts


def check_number(value: Token, most: int, of: str) -> int:
    """Return a part of a token that is an integer from 0 to `most`, else raise a StateError."""
    if type(value) is not int or not 0 <= value <= most:
        refuse(value, f"{of} has an integer from 0 to {most:,}")
    return int(value)


def refuse(value: Token, needed: str) -> NoReturn:
    """Raise the StateError for a token that this dataset can't have made."""
    text = repr(value)
    raise StateError(
        f"this state was saved by an indexable dataset, or one with other steps, or is damaged: {needed}; got "
        f"{text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…'}. Load it into the dataset that it was saved from."
    )


def check_enough(taken: int, count: int, what: str) -> None:
    """Raise if a state says that `taken` elements were taken of fewer than that, which is never so.

    Raises:
        StateError: this dataset didn't save the state.
    """
    if taken >= count:
        raise StateError(
            f"the state has taken {taken} elements of {what}, which has {count}. Load it into the dataset that it was "
            "saved from."
        )


def check_held(found: Token, saved: Token, what: str) -> None:
    """Raise if the elements that a stage held open, computed again, end at another token than when they were saved.

    Raises:
        StateError: the elements below have changed since, for example by other weights of a mixture.
    """
    if found != saved:
        raise StateError(
            f"the state was saved within {what}, which has other elements in this dataset, so some would be lost and "
            "others repeated. Change a mixture's weights only at positions that no rank has read yet, open windows and "
            "sequences included; or load the state into the dataset that it was saved from, on as many ranks."
        )


class InputRef(NamedTuple):
    """A block input or stream, as seen from a step above it."""

    node: Node
    component: str
    """The names of the mixture parts between the step and the input, joined by "/"."""


class StreamedLocations:
    """The locations of a chunk's elements, computed on request."""

    def __init__(self, inputs: Mapping[int, InputRef], provenance: Provenance) -> None:
        self._inputs = inputs
        self._provenance = provenance

    def at(self, index: int) -> Location:
        """Return the location of the chunk's element `index`."""
        number, epoch, position, *seed = self._provenance[index].tolist()
        input_ref = self._inputs[number]
        part, key = "", position
        if not isinstance(input_ref.node, Stream):
            _, part, key = locate(input_ref.node, epoch, position)
        salt = salt_of(input_ref.component)
        return Location(epoch, position, SeedPosition(*seed), key, input_ref.node, input_ref.component, salt, part)

    @property
    def are_plain(self) -> bool:
        """Whether no part's salt is mixed into the seed positions."""
        return not any(input_ref.component for input_ref in self._inputs.values())

    def seeds(self) -> SeedPositions:
        """Return the addresses of the elements' random streams."""
        seeds = seeds_of(self._provenance)
        if self.are_plain:
            return seeds
        salts = {number: salt_of(input_ref.component) for number, input_ref in self._inputs.items()}
        offsets = np.array([salts[number] for number in self._provenance[:, INPUT].tolist()], np.int64)
        return seeds._replace(positions=seeds.positions ^ offsets)

    def keys(self) -> Integers:
        """Return the keys of the elements' records."""
        keys = np.empty(len(self._provenance), np.int64)
        for number in set(self._provenance[:, INPUT].tolist()):
            chosen = self._provenance[:, INPUT] == number
            keys[chosen] = _keys(self._inputs[number].node, self._provenance[chosen])
        return keys

    def components(self) -> list[str]:
        """Return the component of each element."""
        return [self.at(index).path for index in range(len(self._provenance))]

    def indices(self) -> list[int | None]:
        """Return the index of each element over all epochs, as counted in its input."""
        found: list[int | None] = []
        for number, epoch, position in zip(
            self._provenance[:, INPUT].tolist(), *seeds_of(self._provenance)[:2], strict=True
        ):
            found += indices(self._inputs[number].node, [int(epoch)], [int(position)])
        return found


def _keys(node: Node, provenance: Provenance) -> Integers:
    if isinstance(node, Stream):
        return provenance[:, POSITION]
    return key_block(node, np.ascontiguousarray(provenance[:, EPOCH]), np.ascontiguousarray(provenance[:, POSITION]))


LocatedElement = tuple[Element, Location]


def within(location: Location, name: str) -> Location:
    """Return the location as a step above a mixture has it: within the part `name`."""
    component = f"{name}/{location.component}" if location.component else name
    return replace(location, component=component, salt=salt_of(component))


def where_read(verb: str, location: Location) -> str:
    """Return the note of an error about an element."""
    return f"in {verb} at epoch {location.seed.epoch}, position {location.seed.position}, key {location.key}"


def known(location: Location) -> Callable[[], Location]:
    """Return a function that returns a location that is known."""
    return lambda: location

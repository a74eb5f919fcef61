"""The source `stream`: an iterable without random access, read from the beginning or from a state of its own.

A token is (the element's number in the stream, a snapshot); a snapshot is (the number of elements before it, the number
of passes before it, the iterable's state as JSON text or None). A resume loads the state, and reads and drops the
elements between the snapshot and the token. Without a state it reads all elements before the token, with a warning.

An iterable can't skip what other ranks take. So each of several ranks reads the whole iterable, and drops the elements
that aren't in its input range. After a change of the number of ranks, the unread elements of all old ranks begin at the
earliest of their snapshots (`_inputs.deal`).
"""

import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from penstock._caught import Caught, add_note, ends_generator, raised_by_handler
from penstock._decisions import STREAM_ELEMENTS, decide
from penstock._frozen import frozen
from penstock._graph import Element, Location, SeedPosition, Stream
from penstock._readings import StepTimes
from penstock._signatures import name_of
from penstock._streaming._inputs import InputRange
from penstock._streaming._policy import (
    CHUNK_SECONDS,
    COMPARED_ELEMENTS,
    MAX_STREAM_ELEMENTS,
    SKIPPED_ELEMENTS,
    SNAPSHOT_EVERY,
)
from penstock._streaming._stage import (
    LARGEST,
    Chunk,
    InputProgress,
    LocatedElement,
    Provenance,
    Token,
    check_number,
    no_provenance,
    parts_of,
    refuse,
)
from penstock._tree import IMMUTABLE, flatten, is_array
from penstock.errors import GraphError, StateError
from penstock.sources import begin_pass, forgets, from_beginning, state_methods

_ENDLESS_PASSES: Final = 1 << 31


def streamed(step: Stream, epoch: int, rank: int, ranks: int) -> Iterator[LocatedElement]:
    """Yield every `ranks`-th element of an epoch, the first being number `rank`: the definition."""
    for count, element, _ in itertools.islice(read(step, epoch, None), rank, None, ranks):
        yield element, Location(epoch, count, SeedPosition(epoch, count, 0), count, step)


@frozen
class StreamStage:
    """An iterable's elements; one of several ranks takes every `count`-th."""

    number: int
    step: Stream
    epoch: int
    input_range: InputRange
    times: StepTimes
    wanted: int = MAX_STREAM_ELEMENTS
    """The number of elements that the steps above need for the next one: no further one is awaited before these go on,
    since a stream may pause."""

    def start(self) -> Token:
        return (0, self.input_range.snapshot)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        position, snapshot = token
        end = self.input_range.end
        if position >= end:
            return
        self._warn(position, snapshot)
        takes_all = self.input_range.is_dense_from(position)
        elements: list[Element] = []
        tokens: list[Token] = []
        passed, most, began = 0, self._most(0), time.perf_counter()
        reuse = _Reuse(self.step)
        self.times.begin(self.step)
        try:
            for count, element, newest in read(self.step, self.epoch, snapshot):
                if count < position or not (takes_all or self.input_range.has(count)):
                    continue
                elements.append(element)
                tokens.append((count, newest))
                reuse.look(element, count, is_alone=len(elements) == 1)
                if len(elements) >= most or time.perf_counter() - began > CHUNK_SECONDS:
                    passed += len(elements)
                    yield self._timed_chunk(elements, tokens)
                    elements, tokens = [], []
                    most, began = self._most(passed), time.perf_counter()
                    self.times.begin(self.step)
                if count + 1 >= end:
                    break
        except BaseException as error:
            if ends_generator(error):
                raise
            yield self._timed_chunk(elements, tokens)
            raise
        yield self._timed_chunk(elements, tokens)

    def _most(self, passed: int) -> int:
        """Return the largest number of elements of the next chunk, given how many were passed on."""
        return min(decide(STREAM_ELEMENTS, MAX_STREAM_ELEMENTS), self.wanted - passed % self.wanted)

    def _warn(self, position: int, snapshot: Token) -> None:
        count, _, text = (0, 0, None) if snapshot is None else snapshot
        if text is None and position > count + 1:  # no state is taken before the second element of a pass
            name = name_of(self.step.iterable)
            if forgets(self.step.iterable):
                why = f"the state of {name} leaves out what its shuffle buffer holds"
                remedy = "Shuffle with window_shuffle() above the stream instead."
            else:
                why = f"{name} has no state"
                remedy = "Give it get_state and set_state, or state_dict and load_state_dict."
            warnings.warn(
                f"{why}, so {position - count:,} elements are read again to come back to where it was. {remedy}",
                stacklevel=2,
            )

    def _timed_chunk(self, elements: list[Element], tokens: list[Token]) -> Chunk:
        chunk = self._chunk(elements, tokens)
        self.times.lap(self.step, len(elements))
        return chunk

    def _chunk(self, elements: list[Element], tokens: list[Token]) -> Chunk:
        provenance = np.zeros((len(elements), 6), np.int64)
        provenance[:, 0], provenance[:, 1], provenance[:, 3] = self.number, self.epoch, self.epoch
        provenance[:, 2] = provenance[:, 4] = [position for position, _ in tokens]
        return Chunk(elements, provenance, tokens, [(position + 1, snapshot) for position, snapshot in tokens])

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        """Return the elements that start at the tokens, read in as few passes as `SKIPPED_ELEMENTS` allows.

        A fold may hold thousands of elements open, so reading from a snapshot for each of them would take minutes.
        """
        end = self.input_range.end
        chunks: list[Chunk | None] = [None] * len(tokens)
        reading: Iterator[tuple[int, Element, Token]] = iter(())
        reached = -SKIPPED_ELEMENTS - 1  # the number of the next element of `reading`
        for index in sorted(range(len(tokens)), key=lambda index: tokens[index][0]):
            position, snapshot = tokens[index]
            first = 0 if snapshot is None else snapshot[0]
            if reached > position or first > reached + SKIPPED_ELEMENTS:
                reading = read(self.step, self.epoch, snapshot)
            for count, element, newest in reading:
                reached = count + 1
                if count >= position and self.input_range.has(count):
                    chunks[index] = self._chunk([element], [(count, newest)])
                    break
                if reached >= end:
                    break
        found = [chunk for chunk in chunks if chunk is not None]
        if len(found) < len(tokens):
            raise StateError("the state has the token of an element that this dataset doesn't have there")
        if tokens:
            self._warn(*max(tokens, key=lambda token: token[0]))
        provenance = [chunk.provenance for chunk in found]
        return [chunk.elements[0] for chunk in found], np.concatenate(provenance) if found else no_provenance()

    def check(self, token: Token, /) -> None:
        position, snapshot = parts_of(token, 2, of="a stream")
        check_number(position, LARGEST, "a stream")
        # A rank segment that begins within the stream begins at position 0, with the snapshot of its input range.
        check_snapshot(self.step, snapshot, LARGEST if snapshot == self.input_range.snapshot else position)
        check_snapshot(self.step, self.input_range.snapshot, LARGEST)

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        return (InputProgress(token[0], token[1], by_position=True),)

    def is_exhausted(self, token: Token, /) -> bool:
        return bool(token[0] >= self.input_range.end)


class _Reuse:
    """A search for an iterable that changes what it has yielded, such as a buffer or a dict that it uses again.

    A loader reads ahead, so all elements of a batch would have the content of the last one. Each of the first elements
    is compared with what it was, once the iterable has yielded the next one. An element of an earlier chunk was passed
    on, and a function may have changed it; it is only compared if it is yielded again, which then is as wrong.
    """

    def __init__(self, step: Stream) -> None:
        self._step = step
        self._last: tuple[Element, object] | None = None
        self._left = COMPARED_ELEMENTS

    def look(self, element: Element, count: int, *, is_alone: bool) -> None:
        """Compare the element before this one with what it was, and note this one.

        Args:
            element: the newest element.
            count: its number in the stream.
            is_alone: whether it is the first one of its chunk.

        Raises:
            GraphError: the iterable has changed the one before.
        """
        if not self._left:
            return
        last, self._last = self._last, None
        self._left -= 1
        if last is not None and (not is_alone or last[0] is element) and _content_of(last[0]) != last[1]:
            raise GraphError(
                f"a stream must yield new objects, since a loader reads ahead; when {name_of(self._step.iterable)} "
                f"yielded element {count}, the one before had changed, as with a buffer or a dict that is used again. "
                "Yield a copy, such as array.copy() or dict(record)."
            )
        if self._left:
            self._last = element, _content_of(element)


def _content_of(element: Element) -> object:
    """Return what of an element can be compared later: its structure, numbers and texts, and the bytes of arrays."""
    with Caught(Exception):  # elements may be of any kind, also such as `flatten` refuses
        leaves, structure = flatten(element)
        return structure, [_leaf_content(leaf) for leaf in leaves]
    return None


def _leaf_content(leaf: object) -> object:
    if is_array(leaf) and not leaf.dtype.hasobject:
        return leaf.tobytes()
    return leaf if type(leaf) in IMMUTABLE else None


def check_snapshot(step: Stream, snapshot: Token, position: int) -> None:
    """Raise a StateError for a value that can't be a snapshot at or before a position."""
    if snapshot is None:
        return
    count, passes, text = parts_of(snapshot, 3, of="a stream's own state")
    check_number(count, position, "a stream's own state")
    check_number(passes, _ENDLESS_PASSES if step.times is None else step.times, "a stream's own state")
    if text is None:
        return
    try:
        json.loads(text if isinstance(text, str) else "")
    except (ValueError, RecursionError):
        refuse(text, "a stream's own state has JSON text")


def read(step: Stream, epoch: int, snapshot: Token) -> Iterator[tuple[int, Element, Token]]:
    """Yield (number, element, latest snapshot before it) from a snapshot on; None is the beginning."""
    at, passes, text = (0, 0, None) if snapshot is None else snapshot
    if at == 0:
        text = None  # earlier versions took a state before the pass had begun
    while step.times is None or passes < step.times:
        opened = _open(step, epoch if step.times == 1 else epoch * (step.times or _ENDLESS_PASSES) + passes, text)
        newest = (at, passes, text)
        first = at
        # A pass's first snapshot is early: it may have what the iterable counts by itself, such as its passes.
        early = None if text is not None else first + 1
        text = None
        while True:
            if opened.save is not None and at > first and (at == early or at % SNAPSHOT_EVERY == 0):
                newest = (at, passes, _as_text(step, opened.save(at - first)))
            try:
                element = next(opened.iterator)
            except StopIteration:
                break
            except Exception as error:
                add_note(error, f"in {name_of(step.iterable)} at epoch {epoch}, element {at}")
                raise
            yield at, element, newest
            at += 1
        if at == first and step.times is None:
            return  # a repeat of an empty iterable is empty
        passes += 1


class _Opened(NamedTuple):
    iterator: Iterator[Element]
    save: Callable[[int], Any] | None


def _open(step: Stream, epoch: int, text: str | None) -> _Opened:
    """Begin a pass over the iterable, at its state if there is one."""
    made: Any = step.iterable() if callable(step.iterable) else step.iterable
    own = state_methods(made)
    state = None if text is None else json.loads(text)
    _load(step, lambda given: begin_pass(made, epoch, given), None if own is None else state)
    iterator = iter(made) if own is None or state is not None else from_beginning(made)
    inner = own or state_methods(iterator)
    if inner is None:
        if text is not None:
            raise StateError(f"the state has one of {name_of(step.iterable)}, which has no state now")
        return _Opened(iterator, None)
    if own is None and text is not None:
        _load(step, inner.load, state)
    return _Opened(iterator, inner.save)


def _load(step: Stream, load: Callable[[Any], object], state: object) -> None:
    """Load the state at which a pass begins; None is the beginning."""
    if state is None:
        load(None)
        return
    try:
        load(state)
    except Exception as error:
        if raised_by_handler(error):
            raise
        raise StateError(
            f"{name_of(step.iterable)} can't resume from its own part of this state ({type(error).__name__}: {error}). "
            "Load it into the dataset that it was saved from."
        ) from error


def _as_text(step: Stream, state: object) -> str:
    try:
        return json.dumps(state)
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"the state of a stream must be a JSON value, to be part of the loader's; that of {name_of(step.iterable)} "
            f"is not ({error})"
        ) from error

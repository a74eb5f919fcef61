"""Combinings, the values of steps that make one dataset of several: each has the facts, the definition and the stage.

A step that joins datasets, its parts, is one file in this package, and a verb that adds a `Combine` node with the
value. No other file distinguishes these steps. There are two kinds:

- `mix`, `concatenate` and `interleave` take each element from one part. If all parts have positions, a rule of
  `penstock.sampling` maps positions to parts; the graph evaluates it, and no stage is opened.
- `zip` makes each element of one element of each part.

Rules of a stage, beyond those of each stage:
  - A token has one token for each part; by default it is the tuple of these. That of a part that was read to its end
    may be None.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, Self

from penstock._frozen import frozen
from penstock._graph import Combine, CombineFacts, Element, listed
from penstock._streaming._stage import (
    LARGEST,
    Chunk,
    InputProgress,
    LocatedElement,
    Provenance,
    Stage,
    Token,
    no_provenance,
    one_each,
    parts_of,
)
from penstock.errors import InternalError

_END: Final = InputProgress(LARGEST)
"""The progress of an input that was read to its end."""


class Combining(CombineFacts):
    """The value of the node; a frozen dataclass of the verb's arguments inherits from it.

    Equal values make equal datasets, and a value is pickled for worker processes. The methods of the stage get the
    opened stage, with the stages of the parts; the token is always one that `check_token` accepted.
    """

    __slots__ = ()

    def lines(self, names: tuple[str, ...], lengths: Sequence[str]) -> list[str]:
        """Return lines for `explain`: by default all parts are read to their ends."""
        parts = [f"{name} {length}" for name, length in zip(names, lengths, strict=True)]
        return ["until the last part ends", listed(parts)]

    @property
    def starts_are_afters(self) -> bool:
        """Whether each element's start is the `after` of the one before, however the parts' tokens are."""
        return True

    @abstractmethod
    def in_order(self, names: tuple[str, ...], parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
        """Yield the elements, each with its location, given those of the parts: the definition."""

    @abstractmethod
    def run(self, stage: "CombineStage", token: Token) -> Iterator[Chunk]:
        """Yield the elements after a token, as `Stage.run`."""

    def start(self, parts: tuple[Token, ...]) -> Token:
        """Return the token before the first element, given those of the parts."""
        return parts

    def tokens(self, token: Token) -> Token:
        """Return the tuple of the parts' tokens in a token."""
        return token

    def check_token(self, stage: "CombineStage", token: Token) -> None:
        """Raise a StateError for a token that the stage can't have made, as `Stage.check`."""
        check_parts(stage, token, of=f"{self.verb}()")

    def reproduce(self, stage: "CombineStage", tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
        """Return the elements that start at the tokens, as `Stage.reproduce`. By default each is computed by `run`."""
        return one_each(stage, tokens)

    def is_exhausted(self, exhausted: Iterator[bool]) -> bool:
        """Return whether certainly no element follows, given whether this is so for each part. By default for all."""
        return all(exhausted)

    @property
    def depends_on_count(self) -> bool:
        """Whether an element depends on how many elements came before: no rank then continues where another was."""
        return not self.takes_one

    def of_rank(self, ranks: int) -> Self:
        """Return the value for one of several ranks, each of which has every `ranks`-th element."""
        del ranks
        return self

    def keeping_all(self) -> Self:
        """Return the value for an old rank's segment, whose stage must yield each element that was held open."""
        return self


@frozen
class CombineStage:
    """An opened step.

    Attributes:
        value: the step.
        names: of the parts.
        parts: their stages.
    """

    value: Combining
    names: tuple[str, ...]
    parts: tuple[Stage, ...]

    def start(self) -> Token:
        return self.value.start(tuple(part.start() for part in self.parts))

    def run(self, token: Token, /) -> Iterator[Chunk]:
        return self.value.run(self, token)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return self.value.reproduce(self, tokens)

    def check(self, token: Token, /) -> None:
        self.value.check_token(self, token)

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        found: list[InputProgress] = []
        for part, at in zip(self.parts, self.value.tokens(token), strict=True):
            found += part.progress(at) if at is not None else (_END,) * len(part.progress(part.start()))
        return tuple(found)

    def is_exhausted(self, token: Token, /) -> bool:
        at = zip(self.parts, self.value.tokens(token), strict=True)
        return self.value.is_exhausted(each is None or part.is_exhausted(each) for part, each in at)


class PartInput:
    """The elements of one part after a token; with token None there are none."""

    def __init__(self, stage: Stage, token: Token) -> None:
        self._chunks = iter(()) if token is None else stage.run(token)
        self.chunk = Chunk([], no_provenance(), (), ())
        """The chunk that was read last."""
        self.index = 0
        """The number of the next element in it."""

    def available(self) -> int:
        """Return the number of elements that can be taken, after reading on if there are none; 0 at the end."""
        while not (count := len(self.chunk.elements) - self.index):
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self.chunk, self.index = chunk, 0
        return count

    def take(self, count: int) -> Chunk:
        """Return the next `count` elements, of those that are available."""
        self.index += count
        return self.chunk.part(self.index - count, self.index)


def check_parts(stage: CombineStage, tokens: Token, *, of: str) -> None:
    """Raise a StateError if a value isn't a token, or None, for each part."""
    for part, at in zip(stage.parts, parts_of(tokens, len(stage.parts), of=of), strict=True):
        if at is not None:
            part.check(at)


def combining_of(node: Combine) -> Combining:
    """Return the value of a node with several parents."""
    if not isinstance(node.value, Combining):
        raise InternalError(f"the value of a node with several parents has a stage; got {node.value!r}")
    return node.value

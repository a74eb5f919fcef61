"""The stages of what an old rank held open, after a change of the number of ranks.

A step that leaves out held elements at its end keeps them in an old rank's segment: a mixture goes on with its other
parts after the first one has ended. So the steps above may get other elements there than the old rank did; and a window
that it was in, computed again, would have other elements. Therefore such a chain of steps is read twice. First its
steps are as the old rank had them, and the elements end where the old rank had read to (`UntilStage`). Then, with
nothing held open above, come the elements that are left (`LeftStage`).

A token of `LeftStage` is that of the chain; while elements are left, it is ("left", that token).

Example: an old rank's token of `mix(...).window_shuffle(4)` is `(m0, 3, m4)`. Of the window between the tokens `m0` and
`m4` of the mixture, three elements were delivered. The first chain yields the fourth, and ends there, as its mixture
ends at `m4`. The second chain begins with the next window: at its token `(m4, 0)`, that of `LeftStage` is
`("left", (m4, 0))`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock._frozen import frozen
from penstock._graph import Element
from penstock._streaming._stage import (
    Chunk,
    InputProgress,
    Provenance,
    SameTokenStage,
    Stage,
    Token,
    check_held,
    is_compound,
    one_each,
)

_LEFT: Final = "left"


@frozen
class UntilStage(SameTokenStage):
    """The elements of a step up to a token.

    Attributes:
        below: the stage of the step.
        until: the token.
        may_be_start: whether an element's start may be another token than the `after` of the one before, so that
            elements may end without one whose `after` is `until`.
    """

    below: Stage
    until: Token
    may_be_start: bool

    def run(self, token: Token, /) -> Iterator[Chunk]:
        last = token
        for chunk in self.below.run(token) if token != self.until else ():
            for number, last in enumerate(chunk.afters):
                if last == self.until:
                    yield chunk.part(0, number + 1)
                    return
            yield chunk
        if not self.may_be_start:
            check_held(last, self.until, "a part of an old rank")

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return self.below.reproduce(tokens)

    def is_exhausted(self, token: Token, /) -> bool:
        return bool(token == self.until) or self.below.is_exhausted(token)


@frozen
class LeftStage:
    """The elements that the steps above a step held open, and then those that are left.

    Attributes:
        held: the chain of steps as the old rank had it, up to where it had read to.
        left: the chain, with steps that keep what they hold open.
        following: the token of `left` behind the elements of `held`.
    """

    held: Stage
    left: Stage
    following: Token

    def start(self) -> Token:
        return self.held.start()

    def run(self, token: Token, /) -> Iterator[Chunk]:
        if not _is_left(token):
            yield from self.held.run(token)
            token = _left(self.following)
        for chunk in self.left.run(token[1]):
            yield chunk.wrapped(_left)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        stage, at = self._at(token)
        stage.check(at)

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        stage, at = self._at(token)
        return stage.progress(at)

    def is_exhausted(self, token: Token, /) -> bool:
        stage, at = self._at(token)
        return stage.is_exhausted(at) and (_is_left(token) or self.left.is_exhausted(self.following))

    def _at(self, token: Token) -> tuple[Stage, Token]:
        return (self.left, token[1]) if _is_left(token) else (self.held, token)


def _left(token: Token) -> Token:
    return (_LEFT, token)


def _is_left(token: Token) -> bool:
    return is_compound(token) and len(token) == 2 and bool(token[0] == _LEFT)

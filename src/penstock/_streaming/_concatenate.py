"""The step `concatenate`: all elements of the first part, then all of the second, and so on.

A token of the stage has None for each part that was read.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from penstock._frozen import frozen
from penstock._streaming._combine import CombineStage, Combining
from penstock._streaming._stage import Chunk, LocatedElement, Token, within
from penstock.sampling import Concatenation


@frozen
class Concatenate(Combining):
    """The elements of the parts, one part after the other."""

    by_position: Concatenation | None

    @property
    def rule(self) -> Concatenation | None:
        return self.by_position

    @property
    def verb(self) -> str:
        return "concatenate"

    def is_endless(self, parts: Iterable[bool]) -> bool:
        return any(parts)

    @property
    def starts_are_afters(self) -> bool:
        return False

    def order_text(self, seed: int, seen: int | None) -> str:
        del seen
        return f"chain {seed}" if self.rule is None else f"mix {seed} {self.rule!r}"

    def in_order(self, names: tuple[str, ...], parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
        named = zip(names, parts, strict=True)
        return ((element, within(location, name)) for name, part in named for element, location in part)

    def run(self, stage: CombineStage, token: Token) -> Iterator[Chunk]:
        for number, (part, at) in enumerate(zip(stage.parts, token, strict=True)):
            if at is not None:
                for chunk in part.run(at):
                    yield chunk.wrapped(partial(_within_parts, (None,) * number, token[number + 1 :]))


def _within_parts(before: tuple[Token, ...], behind: tuple[Token, ...], token: Token) -> Token:
    return (*before, token, *behind)

"""The step `zip`: the elements at the same position of all parts as one element, a tuple or a dict."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from penstock._frozen import frozen
from penstock._graph import Element, Node, length
from penstock._streaming._combine import CombineStage, Combining, PartInput
from penstock._streaming._stage import Chunk, Lazy, LocatedElement, Provenance, Token, parts_of, within
from penstock.errors import GraphError


@frozen
class Zip(Combining):
    """One element of each part, as a tuple, or as a dict by the parts' names.

    Unequal lengths are an error, or the dataset ends with the shortest part.
    """

    as_dict: bool
    unequal: Literal["error", "shortest"] = "error"

    @property
    def verb(self) -> str:
        return "zip"

    @property
    def takes_one(self) -> bool:
        return False

    def joined(self, names: tuple[str, ...], columns: Sequence[list[Element]]) -> list[Element]:
        rows = zip(*columns, strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows] if self.as_dict else list(rows)

    def count(self, parts: Sequence[Node]) -> int | None:
        least: int | None = None
        for part in parts:
            count = length(part)
            if count is None:
                return None
            least = count if least is None else min(least, count)
        return least

    def is_endless(self, parts: Iterable[bool]) -> bool:
        return all(parts)

    def order_text(self, seed: int, seen: int | None) -> str:
        del seen
        return f"zip {seed}"

    @property
    def detail_texts(self) -> Sequence[str]:
        return (f"zip {'dict' if self.as_dict else 'tuple'}",)

    def in_order(self, names: tuple[str, ...], parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
        """Yield one element of each part as one element, with the location of the first part's."""
        while True:
            following = [next(part, None) for part in parts]
            row = [one for one in following if one is not None]
            if len(row) < len(parts):
                if self.unequal == "error":
                    _need_none([name for name, one in zip(names, following, strict=True) if one is not None])
                return
            yield self.joined(names, [[element] for element, _ in row])[0], within(row[0][1], names[0])

    def run(self, stage: CombineStage, token: Token) -> Iterator[Chunk]:
        inputs = [PartInput(part, at) for part, at in zip(stage.parts, token, strict=True)]
        while count := min(each.available() for each in inputs):
            taken = [each.take(count) for each in inputs]
            yield Chunk(
                self.joined(stage.names, [each.elements for each in taken]),
                taken[0].provenance,
                _tokens([each.starts for each in taken]),
                _tokens([each.afters for each in taken]),
            )
        if self.unequal == "error":
            _need_none([name for name, each in zip(stage.names, inputs, strict=True) if each.available()])

    def check_token(self, stage: CombineStage, token: Token) -> None:
        """Raise a StateError for a token that the stage can't have made; no part's token is None."""
        for part, at in zip(stage.parts, parts_of(token, len(stage.parts), of="zip()"), strict=True):
            part.check(at)

    def reproduce(self, stage: CombineStage, tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
        parts = [part.reproduce([token[number] for token in tokens]) for number, part in enumerate(stage.parts)]
        return self.joined(stage.names, [elements for elements, _ in parts]), parts[0][1]

    def is_exhausted(self, exhausted: Iterator[bool]) -> bool:
        return any(exhausted)


def _need_none(longer: list[str]) -> None:
    if longer:
        raise GraphError(
            f"zip needs parts of equal lengths; {longer} had elements left when another part had ended. Pass "
            'unequal="shortest" to end with the shortest.'
        )


def _tokens(columns: list[Sequence[Token]]) -> Lazy:
    """Return the tokens of elements, given those of each part."""
    return Lazy(len(columns[0]), lambda index: tuple(tokens[index] for tokens in columns))

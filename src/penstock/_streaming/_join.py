"""The stages of `concatenate` and `zip` for parts that are read in order. A token has one token for each part."""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock._frozen import frozen
from penstock._graph import Element, Zip
from penstock._streaming._chunk import Chunk, Lazy, Pending, Provenance, Token
from penstock._streaming._stage import Point, Stage, one_each, parts_of
from penstock.errors import GraphError

_MAX_AT_ONCE: Final = 64


@frozen
class ChainStage:
    """All of the first part, then all of the second, and so on. The token of a part that was read is None."""

    parts: tuple[Stage, ...]

    def start(self) -> Token:
        return tuple(part.start() for part in self.parts)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        for number, (part, at) in enumerate(zip(self.parts, token, strict=True)):
            if at is not None:
                for chunk in part.run(at):
                    yield _wrapped(chunk, (None,) * number, token[number + 1 :])

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        for part, at in zip(self.parts, parts_of(token, len(self.parts), of="concatenate()"), strict=True):
            if at is not None:
                part.check(at)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return tuple(
            point
            for part, at in zip(self.parts, token, strict=True)
            for point in (part.points(at) if at is not None else _ends(part))
        )

    def is_exhausted(self, token: Token, /) -> bool:
        return all(at is None or part.is_exhausted(at) for part, at in zip(self.parts, token, strict=True))


def _wrapped(chunk: Chunk, before: tuple[Token, ...], behind: tuple[Token, ...]) -> Chunk:
    starts, afters, count = chunk.starts, chunk.afters, len(chunk.elements)
    return chunk._replace(
        starts=Lazy(count, lambda index: (*before, starts[index], *behind)),
        afters=Lazy(count, lambda index: (*before, afters[index], *behind)),
    )


def _ends(part: Stage) -> tuple[Point, ...]:
    return tuple(Point(1 << 62) for _ in part.points(part.start()))


@frozen
class ZipStage:
    """One element of each part, as a tuple or dict."""

    step: Zip
    parts: tuple[Stage, ...]

    def start(self) -> Token:
        return tuple(part.start() for part in self.parts)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        streams = [part.run(at) for part, at in zip(self.parts, token, strict=True)]
        pending = [Pending() for _ in self.parts]
        while True:
            for stream, held in zip(streams, pending, strict=True):
                while not held.count and (chunk := next(stream, None)) is not None:
                    held.add(chunk)
            count = min(held.count for held in pending)
            if count == 0:
                self._check_end(pending)
                return
            for _ in range(count):
                taken = [held.take(1) for held in pending]
                element = joined(self.step, [one.elements[0] for one in taken])
                start, after = tuple(one.start for one in taken), tuple(one.after for one in taken)
                yield Chunk([element], taken[0].provenance, (start,), (after,))

    def _check_end(self, pending: list[Pending]) -> None:
        longer = [name for name, held in zip(self.step.names, pending, strict=True) if held.count]
        if longer and self.step.unequal == "error":
            raise GraphError(
                f"zip needs parts of equal lengths; {longer} had elements left when another part had ended. Pass "
                'unequal="shortest" to end with the shortest.'
            )

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        parts = [part.reproduce([token[number] for token in tokens]) for number, part in enumerate(self.parts)]
        elements = [joined(self.step, list(row)) for row in zip(*(elements for elements, _ in parts), strict=True)]
        return elements, parts[0][1]

    def check(self, token: Token, /) -> None:
        for part, at in zip(self.parts, parts_of(token, len(self.parts), of="zip()"), strict=True):
            part.check(at)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return tuple(point for part, at in zip(self.parts, token, strict=True) for point in part.points(at))

    def is_exhausted(self, token: Token, /) -> bool:
        return any(part.is_exhausted(at) for part, at in zip(self.parts, token, strict=True))


def joined(step: Zip, elements: list[Element]) -> Element:
    """Return one element of each part as a tuple or dict."""
    return dict(zip(step.names, elements, strict=True)) if step.as_dict else tuple(elements)

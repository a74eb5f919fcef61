"""The step `interleave`: one element of each part in turn, until all have ended."""

from collections.abc import Iterable

from penstock._frozen import frozen
from penstock._streaming._turns import Shares, TakingTurns
from penstock.sampling import RoundRobin


@frozen
class Interleave(TakingTurns):
    """One element of each part in turn; a part that has ended is skipped."""

    by_position: RoundRobin | None

    @property
    def rule(self) -> RoundRobin | None:
        return self.by_position

    @property
    def verb(self) -> str:
        return "interleave"

    def is_endless(self, parts: Iterable[bool]) -> bool:
        return any(parts)

    def order_text(self, seed: int, seen: int | None) -> str:
        del seen
        return f"ordered mix {seed} all" if self.rule is None else f"mix {seed} {self.rule!r}"

    def shares(self, parts: int) -> Shares:
        return Shares(((0, (1,) * parts),), "all")

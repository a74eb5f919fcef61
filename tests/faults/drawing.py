"""Values of Hypothesis strategies, drawn from a seed alone.

Hypothesis itself mixes in constants of the modules that are imported so far, so one seed gives other values in another
program. A provider of choices that uses nothing but the seed makes a round repeatable.
"""

import math
from typing import Any, ClassVar, Final, TypeVar, cast

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

from tests.faults.chance import Chance

T = TypeVar("T")

_NAME: Final = "seeded"
_MAX_CHARACTERS: Final = 8
_MAX_NUMBER: Final = 2**63
_MANY: Final = 2**16
_PARTS: Final = 2**53


class SeededProvider(PrimitiveProvider):
    """Draws choices from `chance` alone, which is set before each use."""

    chance: ClassVar[Chance] = Chance(0)

    def draw_boolean(self, p: float = 0.5) -> bool:
        """Return True with a probability."""
        return self.draw_float(min_value=0.0, max_value=1.0, smallest_nonzero_magnitude=0.0) < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,  # noqa: ARG002 - only a hint
        shrink_towards: int = 0,  # noqa: ARG002 - nothing shrinks
    ) -> int:
        """Return an integer; of a large range, the bounds are likelier than others."""
        last = _MAX_NUMBER if max_value is None else max_value
        first = min(last, 0) - _MAX_NUMBER if min_value is None else min_value
        if last - first >= _MANY and self.chance.is_one_in(8):
            return self.chance.one_of([first, last])
        return self.chance.between(first, max(first, last))

    def draw_float(
        self,
        *,
        min_value: float = -math.inf,
        max_value: float = math.inf,
        allow_nan: bool = True,  # noqa: ARG002 - none is drawn
        smallest_nonzero_magnitude: float,  # noqa: ARG002 - a number as small is too unlikely
    ) -> float:
        """Return a finite float."""
        first, last = max(min_value, -1e9), min(max_value, 1e9)
        return first + (last - first) * self.chance.between(0, _PARTS - 1) / _PARTS

    def draw_string(self, intervals: Any, *, min_size: int = 0, max_size: int = _MAX_CHARACTERS) -> str:
        """Return a few characters."""
        count = self.chance.between(min_size, min(max_size, min_size + _MAX_CHARACTERS))
        return "".join(chr(intervals[self.chance.between(0, len(intervals) - 1)]) for _ in range(count))

    def draw_bytes(self, min_size: int = 0, max_size: int = _MAX_CHARACTERS) -> bytes:
        """Return a few bytes."""
        count = self.chance.between(min_size, min(max_size, min_size + _MAX_CHARACTERS))
        return bytes(self.chance.between(0, 255) for _ in range(count))


cast("dict[str, Any]", AVAILABLE_PROVIDERS)[_NAME] = f"{__name__}.{SeededProvider.__name__}"


def drawn(strategy: st.SearchStrategy[T], number: int) -> T:
    """Return the value that a strategy has for a number."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=2,  # the first is always the simplest
        backend=_NAME,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.large_base_example],
    )
    @given(strategy)
    def note(value: T) -> None:
        found.append(value)

    SeededProvider.chance = Chance(number)
    note()
    return found[-1]

"""The seeds of generators that a function spawns from its own one, or makes from the seeds of its own one.

NumPy takes them from the sequence of seeds with which a bit generator began. That of a step is set to one element's
stream after the other, so its sequence draws seeds from the stream: they are a pure function of the element, and of
the numbers that its function has drawn before.
"""

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence, SeedSequence
from numpy.typing import DTypeLike, NDArray

from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


class StreamSeeds(ISpawnableSeedSequence):
    """The seeds of a bit generator that is set to stream after stream.

    Attributes:
        bits: returns the bit generator, or None once its step's generator no longer exists; None while it is made.
    """

    def __init__(self) -> None:
        self.bits: Callable[[], np.random.BitGenerator | None] | None = None

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        """Return seeds that are drawn; zeros while the bit generator is made, which is set to a stream before its use.

        Args:
            n_words: their number.
            dtype: uint32 or uint64.

        Raises:
            UsageError: the generator is used after its loader has ended.
        """
        if self.bits is None:
            return np.zeros(n_words, dtype)
        return self._drawn().generate_state(n_words, cast("Any", dtype))

    def spawn(self, n_children: int) -> list[Any]:
        """Return sequences of seeds that are drawn.

        Args:
            n_children: their number.

        Raises:
            UsageError: the generator is used after its loader has ended.
        """
        return [*self._drawn().spawn(n_children)]

    def __reduce__(self) -> tuple[type[Any], tuple[list[int], ...]]:
        # A copy of the generator draws the same numbers, so a copy must not draw from it.
        bits = self._living()
        if bits is None:
            return StreamSeeds, ()
        state: Any = bits.state
        words = [*state["state"]["key"], *state["state"]["counter"], state["buffer_pos"]]
        return SeedSequence, ([int(word) for word in words],)

    def _drawn(self) -> SeedSequence:
        bits = self._living()
        if bits is None:
            raise UsageError("a function's generator must spawn others in its calls; spawn them there")
        return SeedSequence([int(word) for word in bits.random_raw(4)])

    def _living(self) -> "np.random.BitGenerator | None":
        return None if self.bits is None else self.bits()

"""The definition of a weighted mixture in plain Python: a walk over positions, with a counter for each component."""

import math
from collections.abc import Iterator, Sequence

from penstock.sampling import WeightedMixture
from tests.seeds import derive


def ranked(names: Sequence[str], seed: int) -> list[int]:
    """Return the components' numbers in the order of their hashed names."""
    return sorted(range(len(names)), key=lambda number: (derive(seed, names[number]), names[number]))


class Order:
    """The order of the members of one stretch, whose members are numbered in their hashed order."""

    def __init__(self, weights: list[int], seed: int) -> None:
        self.period = period = sum(weights)
        owners = [member for member, weight in enumerate(weights) for _ in range(weight)]
        prime = [number for number in range(1, 2 * period + 1) if math.gcd(number, period) == 1]
        step = min(prime, key=lambda number: (abs(number - round(period * 0.618034)), -number))
        shift = derive(seed, "mixture order")
        self.base = [owners[(place * step + shift) % period] for place in range(period)]
        self.rotations = min(period, max(16, 2**15 // len(weights)))
        self.rotation_step = max(number for number in prime if number <= period // self.rotations)
        self.rotation_shift = derive(seed, "mixture rotation")

    def member(self, offset: int) -> int:
        """Return the member at an offset from the stretch's start."""
        number, place = divmod(offset, self.period)
        fraction = (number * 0x9E3779B97F4A7C15 + self.rotation_shift) % 2**64 // 2**32
        rotation = fraction * self.rotations // 2**32
        return self.base[(place + rotation * self.rotation_step) % self.period]


def walk(mixture: WeightedMixture) -> Iterator[tuple[int, int, int]]:
    """Yield (component, position in all its passes, number of the change) of each position of an epoch, in order."""
    counts = [0] * len(mixture.names)
    position = 0
    finished: set[int] = set()
    for change, (_, weights) in enumerate(mixture.schedule):
        last = change + 1 == len(mixture.schedule)
        while last or position < mixture.schedule[change + 1][0]:
            ranking = ranked(mixture.names, mixture.seed)
            members = [component for component in ranking if weights[component] and component not in finished]
            if not members:
                break
            divisor = math.gcd(*(weights[member] for member in members))
            order = Order([weights[member] // divisor for member in members], mixture.seed)
            start = position
            while last or position < mixture.schedule[change + 1][0]:
                component = members[order.member(position - start)]
                if mixture.stop != "never" and counts[component] == mixture.lengths[component]:
                    if mixture.stop == "first":
                        return
                    finished.add(component)
                    break
                yield component, counts[component], change
                counts[component] += 1
                position += 1

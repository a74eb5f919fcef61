"""The locations of elements that are read in order, from their provenance.

Above a mixture, elements of different parts may have the same seed position. A hash of the part's name, the salt, is
mixed into it, so that their random streams differ, and a new part doesn't change the streams of the others.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock._graph import (
    Integers,
    Location,
    Node,
    SeedPosition,
    SeedPositions,
    Stream,
    indices,
    key_block,
    locate,
    salt_of,
)
from penstock._streaming._chunk import EPOCH, INPUT, POSITION, Provenance, seeds_of


class InputRef(NamedTuple):
    """A block input or stream, as seen from a step above it."""

    node: Node
    component: str
    """The names of the mixture parts between the step and the input, joined by "/"."""


class StreamedLocations:
    """The locations of a chunk's elements, computed on request."""

    def __init__(self, inputs: Mapping[int, InputRef], provenance: Provenance) -> None:
        self._inputs = inputs
        self._provenance = provenance

    def at(self, index: int) -> Location:
        """Return the location of the chunk's element `index`."""
        number, epoch, position, *seed = self._provenance[index].tolist()
        input_ref = self._inputs[number]
        part, key = "", position
        if not isinstance(input_ref.node, Stream):
            _, part, key = locate(input_ref.node, epoch, position)
        salt = salt_of(input_ref.component)
        return Location(epoch, position, SeedPosition(*seed), key, input_ref.node, input_ref.component, salt, part)

    @property
    def are_plain(self) -> bool:
        """Whether no part's salt is mixed into the seed positions."""
        return not any(input_ref.component for input_ref in self._inputs.values())

    def seeds(self) -> SeedPositions:
        """Return the addresses of the elements' random streams."""
        seeds = seeds_of(self._provenance)
        if self.are_plain:
            return seeds
        salts = {number: salt_of(input_ref.component) for number, input_ref in self._inputs.items()}
        offsets = np.array([salts[number] for number in self._provenance[:, INPUT].tolist()], np.int64)
        return seeds._replace(positions=seeds.positions ^ offsets)

    def keys(self) -> Integers:
        """Return the keys of the elements' records."""
        keys = np.empty(len(self._provenance), np.int64)
        for number in np.unique(self._provenance[:, INPUT]).tolist():
            chosen = self._provenance[:, INPUT] == number
            keys[chosen] = _keys(self._inputs[number].node, self._provenance[chosen])
        return keys

    def components(self) -> list[str]:
        """Return the component of each element."""
        return [self.at(index).path for index in range(len(self._provenance))]

    def indices(self) -> list[int | None]:
        """Return the index of each element over all epochs, as counted in its input."""
        found: list[int | None] = []
        for number, epoch, position in zip(
            self._provenance[:, INPUT].tolist(), *seeds_of(self._provenance)[:2], strict=True
        ):
            found += indices(self._inputs[number].node, [int(epoch)], [int(position)])
        return found


def _keys(node: Node, provenance: Provenance) -> Integers:
    if isinstance(node, Stream):
        return provenance[:, POSITION]
    return key_block(node, np.ascontiguousarray(provenance[:, EPOCH]), np.ascontiguousarray(provenance[:, POSITION]))

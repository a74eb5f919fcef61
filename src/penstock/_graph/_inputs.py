"""The inputs of elements: the positions of the parents whose elements a block of elements is made of.

Many readings of the graph go down from elements to those that they are made of: the evaluation of blocks, seed
positions, the record of an element, the records that an async source should read ahead, the check of single steps. They
all need the same arithmetic, which is here once: `inputs` returns it for one node and a block of positions, and each
reading recurses by itself. `element_at`, the definition, doesn't use it, so that the two are compared.

A reading that needs one input of each element uses `first_inputs`. It costs the same for batches of any size, where the
location of each row above an `unbatch` would else list all rows of its batch.

There are four ways in which a node makes elements of its parents' elements:

- one of one (a sampler, a function, a cache);
- one of several consecutive inputs (`batch`, and groups planned from known lengths): `Inputs.counts`;
- several of one (`unbatch`, `flat_map`, `windows`): `Inputs.ordinals` tells them apart;
- of several parents: each element of one of them (a mixture: `Inputs.rows`), or of all (a zip).
"""

from typing import NamedTuple, assert_never

import numpy as np

from penstock._graph._nodes import (
    Cache,
    Combine,
    Filter,
    Fold,
    Gather,
    GatherFacts,
    Integers,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
)
from penstock.errors import InternalError
from penstock.sampling import MixtureRule, apply_block

_MAX_SHORT = 1 << 16


class Inputs(NamedTuple):
    """The elements of one parent that a block of elements is made of."""

    parent: Node
    epochs: Integers
    """int64 (inputs,)."""
    positions: Integers
    """int64 (inputs,), in the parent."""
    counts: Integers | None = None
    """The number of inputs of each element, at least 1; None for one each."""
    ordinals: Integers | None = None
    """Each element's number among those that are made of the same first input; None for nodes that make one of each."""
    part: int = 0
    """The number of the parent, if the node has several."""
    rows: Integers | None = None
    """The numbers of the elements that have this parent, ascending; None for all of the block."""

    @property
    def are_shared(self) -> bool:
        """Whether the node makes several elements of one input, which is then needed once."""
        return self.counts is None and self.ordinals is not None

    def bounds(self) -> list[int]:
        """Return the numbers of the inputs at which those of each element begin, and their total."""
        counts = np.ones(len(self.positions), np.int64) if self.counts is None else self.counts
        return [0, *np.cumsum(counts).tolist()]

    def distinct(self) -> "tuple[Node, Integers, Integers, list[int]]":
        """Return the parent, the distinct inputs, and for each input the number of its own among them."""
        epochs, positions = self.epochs, self.positions
        if len(epochs) and (epochs == epochs[0]).all():
            found, which = np.unique(positions, return_inverse=True)
            return self.parent, np.full_like(found, epochs[0]), found, which.reshape(-1).tolist()
        pairs, which = np.unique(np.stack([epochs, positions]), axis=1, return_inverse=True)
        return self.parent, pairs[0].copy(), pairs[1].copy(), which.reshape(-1).tolist()


def inputs(node: Node, epochs: Integers, positions: Integers) -> list[Inputs]:
    """Return the inputs of a block of elements of a node, for each parent that has any.

    Args:
        node: an indexable node, or filters and skipping maps over one.
        epochs: int64 (elements,), the epoch of each element.
        positions: int64 (elements,), each in [0, length of the indexable node).

    Returns:
        Nothing for a source; else one `Inputs` for each parent, of a mixture only for those that occur in the block.
        Their arrays may be the arguments, so don't write to them.
    """
    match node:
        case Read():
            return []
        case Reindex(parent=parent, sampler=sampler):
            return [Inputs(parent, *apply_block(sampler, epochs, positions))]
        case Map(parent=parent) | Filter(parent=parent) | Cache(parent=parent):
            return [Inputs(parent, epochs, positions)]
        case Gather(parent=parent, value=value):
            counts, members = value.members(parent, positions)
            return [Inputs(parent, np.repeat(epochs, counts), members, counts, _ordinals(value, positions))]
        case Split(parent=parent, value=value):
            parents, ordinals = value.locate(parent, positions)
            return [Inputs(parent, epochs, parents, ordinals=ordinals)]
        case Combine(parts=parts, value=value) if value.rule is not None:
            return _inputs_by_part(parts, value.rule, epochs, positions)
        case Combine(parts=parts, value=value) if not value.takes_one:
            return [Inputs(part, epochs, positions, part=number) for number, part in enumerate(parts)]
        case Stream() | Combine() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


def inputs_at(node: Node, epoch: int, position: int) -> list[tuple[Node, int, int]]:
    """Return one input of an element in each parent that has any: the parent, and the epoch and position there."""
    found = inputs(node, np.array([epoch], np.int64), np.array([position], np.int64))
    return [(below.parent, int(below.epochs[0]), int(below.positions[0])) for below in found]


def first_inputs(node: Node, epochs: Integers, positions: Integers, numbers: Integers | int = 0) -> Inputs:
    """Return one input of each element of a block: the first, or another one, in the first parent that has any.

    Args:
        node: as for `inputs`, and no source.
        epochs: as for `inputs`.
        positions: as for `inputs`.
        numbers: for each element, the input's number among those of a batch or group; beyond the last, the last one.
    """
    match node:
        case Gather(parent=parent, value=value):
            chosen = value.member(parent, positions, numbers)
            return Inputs(parent, epochs, chosen, ordinals=_ordinals(value, positions))
        case _:
            return inputs(node, epochs, positions)[0]


def _ordinals(value: GatherFacts, positions: Integers) -> Integers | None:
    """Return the elements' own numbers if several of them may begin with pieces of one input, else None."""
    return positions if value.is_planned else None


def _inputs_by_part(
    parts: "tuple[Node, ...]", rule: MixtureRule, epochs: Integers, positions: Integers
) -> list[Inputs]:
    """Return the inputs of a mixture's block, one for each part that occurs in it."""
    components, epochs, positions = rule.block(epochs, positions)
    if not len(components):
        return []
    first, last = int(components.min()), int(components.max())
    if first == last:
        return [Inputs(parts[first], epochs, positions, part=first)]
    # NumPy sorts 16-bit integers in a fraction of the time.
    order = np.argsort(components.astype(np.uint16) if last < _MAX_SHORT else components, kind="stable")
    components, epochs, positions = components[order], epochs[order], positions[order]
    bounds = [0, *(np.flatnonzero(components[1:] != components[:-1]) + 1).tolist(), len(order)]
    numbers = components[bounds[:-1]].tolist()
    return [
        Inputs(parts[number], epochs[start:stop], positions[start:stop], part=number, rows=order[start:stop])
        for number, start, stop in zip(numbers, bounds[:-1], bounds[1:], strict=True)
    ]

"""The closed set of steps that a dataset is made of: frozen nodes, each holding its parent.

The set is closed so that every reading of the graph (evaluate, describe, fingerprint, lower …) can list all cases and
let the type checker find the missing ones. What is open are the values that nodes hold: a source, a sampler, a
function, a merge function.

Coordinates: a node is evaluated at (epoch, position), position in [0, length of the node).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.sampling import ScalarSampler

Element: TypeAlias = Any
"""A nested dict, list or tuple of leaves; user code enters here, so the type is open."""

Remainder: TypeAlias = Literal["keep", "drop", "pad"]
RandomForm: TypeAlias = Literal["none", "generator", "seed", "globals", "origin"]
Merge: TypeAlias = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Substitute:
    """On an error, take the element of another position instead, chosen by hash: lengths, batches and ranks stay.

    Args:
        attempts: how many other positions are tried, one after the other, before the last error is raised; at least 1.
        budget: how many elements a loader may replace before the error is raised after all; None is no bound.

    Example:
        >>> import penstock as ps
        >>> def decode(number):
        ...     if number == 3:
        ...         raise ValueError("corrupt")
        ...     return number
        >>> elements = list(ps.range(8).map(decode, on_error=ps.Substitute(attempts=3)))
        >>> len(elements), 3 in elements
        (8, False)
    """

    attempts: int = 3
    budget: int | None = None


OnError: TypeAlias = Literal["raise", "skip"] | Substitute


@dataclass(frozen=True, slots=True)
class Read:
    """The element at position i is record i of the source; `length` is what the source had when it was described."""

    source: Any
    length: int
    seed: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Read):
            return NotImplemented
        return (self.length, self.seed) == (other.length, other.seed) and _same_source(self.source, other.source)


def _same_source(one: object, other: object) -> bool:
    """Return whether two sources are one or equal. Those that can't tell, as lists of arrays, are not equal."""
    if one is other:
        return True
    try:
        return bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # what NumPy and torch say of a truth value with many elements
        return False


@dataclass(frozen=True, slots=True)
class Reindex:
    """The parent's elements in another order, given by a pure function of epoch and position.

    `verb` is how the user wrote it, for messages; empty for a node that another verb brought along. `name` is that of
    the random stream which orders it, if any.
    """

    parent: "Node"
    sampler: ScalarSampler
    verb: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Map:
    """A function of each element. `form` says what else it gets; `seed` derives from the dataset's seed and `name`."""

    parent: "Node"
    function: Callable[..., Element]
    name: str
    seed: int
    form: RandomForm = "none"
    on_error: OnError = "raise"


@dataclass(frozen=True, slots=True)
class Filter:
    """The elements for which the predicate is true, in order. Makes the dataset ordered: no length, no indexing."""

    parent: "Node"
    predicate: Callable[[Element], object]
    name: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive elements merged into one; `size` is the global batch, over all ranks.

    `mask` names a bool leaf, present in every batch: which rows are data rather than padding.
    """

    parent: "Node"
    size: int
    merge: Merge
    remainder: Remainder = "keep"
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class Unbatch:
    """The rows of each batch as elements again."""

    parent: "Node"


Node: TypeAlias = Read | Reindex | Map | Filter | Batch | Unbatch


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an element comes from; what `map_with_origin` hands to its function, and `Loader.origin` answers.

    Attributes:
        epoch: which pass over the data, from 0.
        position: the element's place in the global order of that pass, the same for every rank and worker. A batch
            has its first row's.
        key: the address of its record in the source; a batch has its first row's.
        seed: a 64-bit seed of this element's own, for this step.
        ordinal: which row of a batch that was taken apart again; 0 elsewhere.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8, seed=7).shuffle().batch(4))
        >>> origin = loader.origin(step=3, row=1)
        >>> (origin.epoch, origin.position) == (1, 5), origin.key == loader.batch_at(3)[1]
        (True, np.True_)
    """

    epoch: int
    position: int
    key: int
    seed: int = 0
    ordinal: int = 0


def parents(node: Node) -> list[Node]:
    """Return the node and all below it, from the source upwards."""
    chain = [node]
    while not isinstance(node, Read):
        node = node.parent
        chain.append(node)
    return chain[::-1]


def root(node: Node) -> Read:
    """Return the node that reads the source."""
    while not isinstance(node, Read):
        node = node.parent
    return node

"""The closed set of steps that a dataset is made of: frozen nodes, each holding its parent or parents.

The set is closed so that every reading of the graph (evaluate, describe, fingerprint, lower …) can list all cases and
let the type checker find the missing ones. What is open are the values that nodes hold: a source, a sampler, a
function, a merge function, a rule.

Coordinates: a node is evaluated at (epoch, position), position in [0, length of the node).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from penstock._frozen import frozen
from penstock.batching._bucketing import Bucketing
from penstock.batching._grouping import Grouping
from penstock.batching._packing import Packing
from penstock.sampling import MixtureRule, Ragged, ScalarSampler, WindowTable

Element: TypeAlias = Any
"""A nested dict, list or tuple of leaves; user code enters here, so the type is open."""

Remainder: TypeAlias = Literal["keep", "drop", "pad"]
RandomForm: TypeAlias = Literal["none", "generator", "seed", "key", "globals", "origin"]
Merge: TypeAlias = Callable[[list[Any]], Any]


@frozen
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


@frozen
class Read:
    """The element at position i is record i of the source; `length` is what the source had when it was described.

    So is `content`: what a sample of its records contained, where its fingerprint doesn't cover them.
    """

    source: Any
    length: int
    seed: int
    content: str = ""

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


@frozen
class Reindex:
    """The parent's elements in another order, given by a pure function of epoch and position.

    `verb` is how the user wrote it, for messages; empty for a node that another verb brought along. `name` is that of
    the random stream which orders it, if any.
    """

    parent: "Node"
    sampler: ScalarSampler
    verb: str
    name: str = ""


@frozen
class Map:
    """A function of each element. `form` says what else it gets; `seed` derives from the dataset's seed and `name`."""

    parent: "Node"
    function: Callable[..., Element]
    name: str
    seed: int
    form: RandomForm = "none"
    on_error: OnError = "raise"


@frozen
class Filter:
    """The elements for which the predicate is true, in order. Makes the dataset ordered: no length, no indexing."""

    parent: "Node"
    predicate: Callable[[Element], object]
    name: str


@frozen
class Batch:
    """Consecutive elements merged into one; `size` is the global batch, over all ranks.

    `mask` names a bool leaf, present in every batch: which rows are data rather than padding.
    """

    parent: "Node"
    size: int
    merge: Merge
    remainder: Remainder = "keep"
    mask: str | None = None


@frozen
class Unbatch:
    """The rows of each batch as elements again."""

    parent: "Node"


@frozen
class FlatMap:
    """The elements of the list that a function makes of each element; indexable where their counts are known."""

    parent: "Node"
    function: Callable[[Element], Sequence[Element]]
    name: str
    counts: Ragged | None = None


@frozen
class Windows:
    """Runs of consecutive frames of each element, whose leaves have a leading axis of frames; a table says which.

    A window that runs past its episode's end is padded by repeating its last frame; `mask` names a bool leaf of shape
    (frames,) that is true for frames of data.
    """

    parent: "Node"
    table: WindowTable
    mask: str | None = None


@frozen
class Group:
    """Each element is made of several of the parent's; which ones was planned before: a planned `pack` or `bucket`."""

    parent: "Node"
    grouping: Grouping
    verb: str


@frozen
class Mix:
    """Elements of several parents by a closed-form rule: a mixture, or a concatenation.

    `seed` is that of the steps above.
    """

    parts: "tuple[Node, ...]"
    names: tuple[str, ...]
    rule: MixtureRule
    seed: int
    verb: str


@frozen
class StreamingMix:
    """Elements of several parents, the next always from the one that is furthest behind its share.

    `schedule` gives, from counts of elements on, a weight for each part; `measure` is how much an element counts, None
    for 1. With stop "first" the first part that ends ends the mixture, with "all" the last one does.
    """

    parts: "tuple[Node, ...]"
    names: tuple[str, ...]
    schedule: tuple[tuple[int, tuple[int, ...]], ...]
    stop: Literal["first", "all"]
    seed: int
    verb: str
    measure: Callable[[Element], int] | None = None


@frozen
class Chain:
    """The elements of several parents one after the other, where only reading tells how many they are."""

    parts: "tuple[Node, ...]"
    names: tuple[str, ...]
    seed: int


@frozen
class Zip:
    """Tuples of elements of several parents, or dicts if the parts were named.

    Unequal lengths end with the shortest, or are an error.
    """

    parts: "tuple[Node, ...]"
    names: tuple[str, ...]
    seed: int
    as_dict: bool
    unequal: Literal["error", "shortest"] = "error"


@frozen
class Pack:
    """Documents packed into sequences of a fixed length, as they come."""

    parent: "Node"
    packing: Packing


@frozen
class Bucket:
    """Elements of about one size merged into batches, as they come."""

    parent: "Node"
    bucketing: Bucketing


@frozen
class UserFold:
    """The elements that an object of the user's makes of the parent's, taken in order; `make` returns a new object."""

    parent: "Node"
    make: Callable[[], Any]
    name: str


@frozen
class WindowShuffle:
    """Windows of `size` consecutive elements, each in a random order of its own."""

    parent: "Node"
    size: int
    name: str
    seed: int


@frozen
class Limit:
    """The first `count` elements, of every rank, where the parent is read in order."""

    parent: "Node"
    count: int


@frozen
class Stream:
    """Elements as an iterable gives them; `times` passes over it, None without end."""

    iterable: Any
    seed: int
    times: int | None = 1


@frozen
class Cache:
    """The parent's elements, kept by a store once they were computed."""

    parent: "Node"
    store: Any
    verb: str


SourceNode: TypeAlias = Read | Stream
Combine: TypeAlias = Mix | StreamingMix | Chain | Zip
Step: TypeAlias = (
    Reindex
    | Map
    | Filter
    | FlatMap
    | Windows
    | Group
    | Batch
    | Unbatch
    | Pack
    | Bucket
    | UserFold
    | WindowShuffle
    | Limit
    | Cache
)
Node: TypeAlias = SourceNode | Combine | Step


@frozen
class Origin:
    """Where an element comes from; what `map_with_origin` hands to its function, and `Loader.origin` answers.

    Attributes:
        epoch: which pass over the data, from 0.
        position: the element's place in the global order of that pass, the same for every rank and worker. A batch
            has its first row's.
        key: the address of its record in the source; a batch has its first row's.
        seed: a 64-bit seed of this element's own, for this step.
        ordinal: which row of a batch that was taken apart again, or of what `flat_map` made; 0 elsewhere. Where such
            steps are nested, one number below 2**63 for all of their rows.
        component: the part of a mixture that it comes from, and parts of parts, as "web/en"; empty elsewhere.
        index: the element's number over all epochs: `epoch` times the length of the dataset whose positions `position`
            counts, plus `position`. Elements that differ only in `ordinal` share it, and so do elements of different
            parts that are mixed in order. Above a stream whose passes end it is None, since only reading tells how many
            elements the earlier epochs had; a stream that repeats without end has one epoch, and counts on.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8, seed=7).shuffle().batch(4))
        >>> origin = loader.origin(step=3, row=1)
        >>> (origin.epoch, origin.position, origin.index) == (1, 5, 13), origin.key == loader.batch_at(3)[1]
        (True, np.True_)
    """

    epoch: int
    position: int
    key: int
    seed: int = 0
    ordinal: int = 0
    component: str = ""
    index: int | None = None


def parents_of(node: Node) -> "tuple[Node, ...]":
    """Return the nodes directly below a node."""
    if isinstance(node, Read | Stream):
        return ()
    return node.parts if isinstance(node, Mix | StreamingMix | Chain | Zip) else (node.parent,)


def chain(node: Node) -> list[Node]:
    """Return the node and all below it down to a source or to where parts join, from there upwards."""
    steps = [node]
    while not isinstance(node, Read | Stream | Mix | StreamingMix | Chain | Zip):
        node = node.parent
        steps.append(node)
    return steps[::-1]


def walk(node: Node) -> Iterator[Node]:
    """Yield all nodes below a node and itself last, in the order of the parts."""
    for parent in parents_of(node):
        yield from walk(parent)
    yield node


def root(node: Node) -> SourceNode | Combine:
    """Return the source, or the joint of parts, that a chain of steps stands on; its seed is that of the steps."""
    while not isinstance(node, Read | Stream | Mix | StreamingMix | Chain | Zip):
        node = node.parent
    return node

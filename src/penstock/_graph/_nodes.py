"""The nodes of a dataset's graph: frozen dataclasses, each of which holds its parent or parents.

A node describes one step and computes nothing. Several functions read the graph: they evaluate it, describe it, take
its fingerprint, rewrite it. Each is a `match` over the kinds of nodes in a file of its own, so the set of kinds is
closed, and the type checker finds the function that lacks a case. Nodes as classes with methods were rejected: one
reading would be spread over twenty classes. Users extend datasets by the values that nodes hold: a source, a sampler,
a function, a merge function. All folds are one kind of node, `Fold`, and differ in its value; likewise `Gather` for all
steps that make one element of several, `Split` for those that make several of one, and `Combine` for all that make one
dataset of several.

A node is evaluated at coordinates (epoch, position); the position is in [0, length of the node). A node without a
length is read in order (`_streaming`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling import MixtureRule, ScalarSampler

T_contra = TypeVar("T_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)
GatherFacts_co = TypeVar("GatherFacts_co", bound="GatherFacts", covariant=True)

Element: TypeAlias = Any
"""A nested dict, list or tuple of leaves. User code makes elements, so the type is open."""

Integers: TypeAlias = NDArray[np.int64]
Remainder: TypeAlias = Literal["keep", "drop", "pad"]
RandomForm: TypeAlias = Literal["none", "generator", "seed", "key", "globals", "origin"]
Merge: TypeAlias = Callable[[list[Any]], Any]


@frozen
class Substitute:
    """The value of `on_error=` that replaces a failing element by the element of another position, chosen by a hash.

    The dataset keeps its length, and no other row of any batch changes.

    Args:
        attempts: the number of other positions that are tried, one after the other, before the last error is raised;
            at least 1.
        budget: the number of elements that a loader may replace before it raises the error; None is no bound.

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
    """The records of a source; the element at position i is record i.

    `length` and `content` are of the moment when the dataset was described: the number of records, and a digest of a
    sample of them where the source's fingerprint doesn't cover their content.
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
    """Return whether two sources are identical or equal; those that can't be compared (lists of arrays) are not."""
    if one is other:
        return True
    try:
        return bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # NumPy and torch refuse the truth value of an array
        return False


@frozen
class Reindex:
    """The parent's elements in another order; the sampler is a pure function of epoch and position.

    `verb` is the user's call, for messages; it is empty for a node that another verb added. `name` names the random
    stream of the order, if there is one.
    """

    parent: "Node"
    sampler: ScalarSampler
    verb: str
    name: str = ""


@frozen
class Map:
    """A function of each element.

    `form` selects the function's second argument. `seed` derives from the dataset's seed and `name`.
    """

    parent: "Node"
    function: Callable[..., Element]
    name: str
    seed: int
    form: RandomForm = "none"
    on_error: OnError = "raise"


@frozen
class Filter:
    """The elements for which the predicate is true. The result has no length and is read in order."""

    parent: "Node"
    predicate: Callable[[Element], object]
    name: str


class StepFacts(ABC):
    """The facts about a step of one parent that the values of gathers, splits and folds have in common."""

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The verb, as the user wrote it."""

    @property
    @abstractmethod
    def order_text(self) -> str:
        """The text for the fingerprint of the order. Saved states hold its digest, so it never changes."""

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """The user's functions, each after a text for the fingerprint of functions, which never changes."""
        return ()

    @property
    def key_text(self) -> str:
        """The arguments that decide the elements and are in no fingerprint, for the key of a cache on disk."""
        return ""

    @property
    def positions_remedy(self) -> str:
        """A sentence for errors: a form of the verb whose elements have positions; empty if there is none."""
        return ""


class SplitFacts(StepFacts):
    """The facts about a step that makes several elements of one, on which the graph depends.

    A split's value inherits from `penstock._graph._splitting.Splitting`, which adds the definition. It overrides the
    defaults that don't hold for it: a split is taken to call no function of the user's, to have no table, and to make
    pieces of the whole parent element.
    """

    __slots__ = ()

    @property
    def step_name(self) -> str:
        """The name of the step of a user's function; empty for other steps."""
        return ""

    @property
    def is_by_position(self) -> bool:
        """Whether a table has an entry for each position of the parent.

        So the parent's order must not change, nor its seed in a mixture, and the parent has an end.
        """
        return False

    @property
    def pieces_are_inputs(self) -> bool:
        """Whether each piece is made of one input of the parent element, as the row of a batch is."""
        return False

    @abstractmethod
    def count(self, parent: "Node") -> int | None:
        """Return the number of elements, or None if it is unknown: they are read in order."""

    @abstractmethod
    def locate(self, parent: "Node", positions: Integers) -> tuple[Integers, Integers]:
        """Return, for elements with positions, the positions of their parent elements, and their ordinals there.

        Args:
            parent: the parent node.
            positions: int64 (elements,).
        """

    @abstractmethod
    def locate_one(self, parent: "Node", position: int) -> tuple[int, int]:
        """Return `locate` of one element."""


@frozen
class Split:
    """The pieces of each of the parent's elements, as elements; the value decides which these are."""

    parent: "Node"
    value: SplitFacts

    @property
    def name(self) -> str:
        """The name of the step of a user's function; empty for other steps."""
        return self.value.step_name


class GatherFacts(StepFacts):
    """The facts about a step that makes each element of several of its parent's, and its definition.

    The value of a gather inherits from it: a frozen dataclass of the verb's arguments. It overrides the defaults that
    don't hold for it: a gather is taken to call no function of the user's, and to have no plan.
    """

    __slots__ = ()

    @property
    def is_planned(self) -> bool:
        """Whether the inputs of each element were planned, by their positions.

        So the parent's order must not change, nor its seed in a mixture, and the parent has an end. Several elements
        may be made of pieces of one input.
        """
        return False

    @abstractmethod
    def count(self, parent: "Node") -> int | None:
        """Return the number of elements, or None if it is unknown: they are read in order."""

    @abstractmethod
    def element_at(self, parent: "Node", position: int, input_at: Callable[[int], Element]) -> Element:
        """Return the element at a position: the definition.

        Args:
            parent: the parent node.
            position: of the element.
            input_at: returns the parent's element at a position.
        """

    @abstractmethod
    def members(self, parent: "Node", positions: Integers) -> tuple[Integers, Integers]:
        """Return the number of inputs of each element, at least 1, and the positions of all inputs in the parent.

        Args:
            parent: the parent node.
            positions: int64 (elements,).
        """

    @abstractmethod
    def member(self, parent: "Node", positions: Integers, numbers: Integers | int) -> Integers:
        """Return the position of one input of each element, of given numbers among the element's inputs.

        Args:
            parent: the parent node.
            positions: int64 (elements,).
            numbers: a number for all elements, or int64 (elements,); beyond the last input, the last one is returned.
        """

    @abstractmethod
    def merged(self, positions: Integers, bounds: Sequence[int], elements: list[Element]) -> Sequence[Element]:
        """Return a block's elements: a list, or elements that are made when they are first used.

        Args:
            positions: of the elements.
            bounds: the numbers of the inputs at which those of each element begin, and their total.
            elements: the inputs of all elements.
        """


@frozen
class Gather(Generic[GatherFacts_co]):
    """Elements that are made of several of the parent's each; the value decides of which, and how."""

    parent: "Node"
    value: GatherFacts_co


class CombineFacts(ABC):
    """The facts about a step that makes one dataset of several, its parts, on which the graph depends.

    The value inherits from `penstock._streaming._combine.Combining`, which adds the definition in order and the stage.
    It overrides the defaults that don't hold for it: each element is taken to be an element of one part, unchanged.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def verb(self) -> str:
        """The name of the verb."""

    @property
    def rule(self) -> MixtureRule | None:
        """The rule that maps a position to a part and a position there.

        None if the elements are read in order, or if each is made of the elements at its own position of all parts.
        """
        return None

    @property
    def takes_one(self) -> bool:
        """Whether each element is an element of one part; otherwise it is made of one element of each part.

        Only in the first case can another number of ranks resume within an epoch that is read in order.
        """
        return True

    def joined(self, names: tuple[str, ...], columns: Sequence[list[Element]]) -> list[Element]:
        """Return the elements that are made of some elements of each part, or of the one part they are taken from."""
        del names
        return columns[0]

    def count(self, parts: "Sequence[Node]") -> int | None:
        """Return the number of elements, or None if it is unknown: they are read in order."""
        del parts
        return None if self.rule is None else len(self.rule)

    @abstractmethod
    def is_endless(self, parts: Iterable[bool]) -> bool:
        """Return whether the elements repeat without end, given whether those of each part do."""

    @abstractmethod
    def order_text(self, seed: int, seen: int | None) -> str:
        """Return the text for the fingerprint of the order. Saved states hold its digest, so it never changes.

        Args:
            seed: of the random steps above.
            seen: the number of elements that count; None for all.
        """

    def counted(self, names: tuple[str, ...], seen: int | None) -> Sequence[int]:
        """Return the numbers of the parts that count for the fingerprint, in the order in which it lists them."""
        del seen
        return range(len(names))

    @property
    def detail_texts(self) -> Sequence[str]:
        """Further texts about the order, which the fingerprint has among its details; they never change."""
        return ()

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """The user's functions, each after a text for the fingerprint of functions, which never changes."""
        return ()

    @property
    def repeat_remedy(self) -> str:
        """The remedy where the elements should be repeated, and are read in order; without a full stop."""
        return "Give the parts positions, such as by filter(…, index=path), or repeat each of them"

    @abstractmethod
    def lines(self, names: tuple[str, ...], lengths: Sequence[str]) -> list[str]:
        """Return lines for `explain`: the condition on which the elements end, then the shares of the parts.

        Args:
            names: of the parts.
            lengths: of the parts, in words.
        """


@frozen
class Combine:
    """The elements of several parts as one dataset; the value decides how.

    The random steps above derive from `seed`.
    """

    parts: "tuple[Node, ...]"
    names: tuple[str, ...]
    value: CombineFacts
    seed: int


class Combiner(Protocol[T_contra, U_co]):
    """An object that takes elements in order and returns others, for `Dataset.combine`.

    An attribute or property `held` is optional. It says how many of the elements that were added last the object still
    needs, 0 for none. A new object to which just these elements were added must give, from then on, what this one
    gives, its `held` included. It follows that `held` rises by at most one with each element. An object without `held`
    needs all elements of the epoch.

    Example:
        >>> import penstock as ps
        >>> class Pairs:
        ...     def __init__(self) -> None:
        ...         self.waiting: list[int] = []
        ...
        ...     @property
        ...     def held(self) -> int:
        ...         return len(self.waiting)
        ...
        ...     def add(self, element: int) -> list[tuple[int, ...]]:
        ...         self.waiting.append(element)
        ...         return self.flush() if len(self.waiting) == 2 else []
        ...
        ...     def flush(self) -> list[tuple[int, ...]]:
        ...         pair, self.waiting = tuple(self.waiting), []
        ...         return [pair]
        >>> list(ps.range(5).combine(Pairs))
        [(0, 1), (2, 3), (4,)]
    """

    def add(self, element: T_contra, /) -> Sequence[U_co]:
        """Take the next element, and return the list of elements that are complete, which is often empty."""
        ...

    def flush(self) -> Sequence[U_co]:
        """Return the list of remaining elements, after the last element was added."""
        ...


class RandomStream(NamedTuple):
    """The random numbers of a step; `seed` derives from the dataset's seed and `name`."""

    name: str
    seed: int


class FoldFacts(StepFacts):
    """The facts about a fold on which the graph depends.

    A fold's value inherits from `penstock._streaming.Folding`, which adds the definition and the stage. It overrides
    the defaults that don't hold for it: a fold is taken to call no function of the user's, to draw no random numbers,
    and to need its parent's elements whole.
    """

    __slots__ = ()

    @property
    def random(self) -> RandomStream | None:
        """The random numbers that decide the order of the elements."""
        return None

    def with_seed(self, seed: int) -> Self:
        """Return the value with another seed; one that draws no random numbers returns itself."""
        del seed
        return self

    @property
    def limit(self) -> int | None:
        """The number of elements of every rank after which the fold ends; None if it ends with its parent."""
        return None

    @property
    def passes_all(self) -> bool:
        """Whether the elements are the parent's, unchanged, and, up to the limit, all of them.

        Ranks may then share a batch below the fold.
        """
        return False

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of rows, over all ranks, of full batches, if the fold makes batches that ranks share; else ()."""
        return ()

    @property
    def remainder(self) -> Remainder:
        """The rule for batches at the end that aren't full, if the fold makes batches."""
        return "keep"

    def check_ranks(self, count: int) -> None:
        """Raise a UsageError if batches with `rows` can't be divided among `count` ranks."""
        for rows in self.rows:
            if rows % count:
                given = f"{rows} rows of {self.text} on {count} ranks"
                raise UsageError(f"a global batch must divide by the number of ranks; got {given}. Choose a multiple")

    @property
    def state_text(self) -> str:
        """The part of a state that the fold adds, and the elements that a resume computes again, for `explain`."""
        return "the positions of the elements that wait; they are computed again"


@frozen
class Fold:
    """The elements that a fold makes of the parent's, which it reads in order; the value decides which these are."""

    parent: "Node"
    value: FoldFacts


@frozen
class Stream:
    """The elements of an iterable, over `times` passes; None repeats it without end."""

    iterable: Any
    seed: int
    times: int | None = 1


@frozen
class Cache:
    """The parent's elements; a store keeps each once it was computed."""

    parent: "Node"
    store: Any
    verb: str


SourceNode: TypeAlias = Read | Stream
Step: TypeAlias = Reindex | Map | Filter | Split | Gather[GatherFacts] | Fold | Cache
Node: TypeAlias = SourceNode | Combine | Step


@frozen(cached=True)
class Origin:
    """The record, position and seed of an element: the argument of `map_with_origin`, the result of `Loader.origin`.

    Attributes:
        epoch: the pass over the data, from 0.
        position: the element's index in the global order of that pass, the same for every rank and worker. A batch
            has the position of its first row.
        key: the index of the element's record in the source. A batch has the key of its first row.
        seed: a 64-bit seed that this element alone has in this step.
        ordinal: the number of a row that `unbatch` took out of a batch, or of an element that `flat_map` made; else 0.
            If such steps are nested, one number below 2**63 stands for all of their rows.
        component: the part of a mixture that the element comes from; parts of parts are joined, as in "web/en". Empty
            without a mixture.
        index: the element's number over all epochs: `epoch` times the length of the dataset in which `position`
            counts, plus `position`. Elements that differ in `ordinal` alone have the same index, and so may elements of
            different parts of a mixture that is read in order. It is None above a stream whose passes end, since the
            number of elements in earlier epochs is unknown; a stream that repeats without end has one epoch, in which
            the count continues.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8, seed=7).shuffle().batch(4))
        >>> origin = loader.origin(step=3, row=1)
        >>> (origin.epoch, origin.position, origin.index) == (1, 5, 13), origin.key == loader.batch_at(3)[1]
        (True, np.True_)
        >>> origin.record == f"key {origin.key}"
        True
    """

    epoch: int
    position: int
    key: int
    seed: int = 0
    ordinal: int = 0
    component: str = ""
    index: int | None = None

    @property
    def record(self) -> str:
        """The record's name: its key and, where the source knows them, its file and its place in it.

        For example "key 3 (file 'cat/3.png')". Of an origin that a loader returned, the source is asked when this is
        read. The origins that functions get, and pickled ones, name the key alone.
        """
        describe: Callable[[], str] | None = vars(self).get("describe")
        return f"key {self.key}" if describe is None else describe()


def parents_of(node: Node) -> "tuple[Node, ...]":
    """Return the nodes directly below a node."""
    if isinstance(node, Read | Stream):
        return ()
    return node.parts if isinstance(node, Combine) else (node.parent,)


def chain(node: Node) -> list[Node]:
    """Return the steps from the nearest node with no parent or several up to a node, both included."""
    steps = [node]
    while not isinstance(node, Read | Stream | Combine):
        node = node.parent
        steps.append(node)
    return steps[::-1]


def walk(node: Node) -> Iterator[Node]:
    """Yield all nodes below a node, in the order of the parts, and the node itself last."""
    for parent in parents_of(node):
        yield from walk(parent)
    yield node


def parts_with_names(node: Node) -> dict[int, str]:
    """Return the names of the parts that each node is in, joined as in "web/en", by its identity.

    Nodes that are in no part are left out. A node in two parts has the names of the first one.
    """
    found: dict[int, str] = {}
    seen: set[int] = set()
    left = [(node, "")]
    while left:
        each, path = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if path:
            found[id(each)] = path
        names = each.names if isinstance(each, Combine) else ("",) * len(parents_of(each))
        below = zip(parents_of(each), names, strict=True)
        left += [(parent, "/".join(filter(None, (path, name)))) for parent, name in below][::-1]
    return found


def root(node: Node) -> SourceNode | Combine:
    """Return the node at the bottom of a chain of steps: a source, or a node with several parents."""
    while not isinstance(node, Read | Stream | Combine):
        node = node.parent
    return node

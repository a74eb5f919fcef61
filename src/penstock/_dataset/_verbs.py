"""What every group of verbs builds on: the description so far, and how a verb makes a dataset of one more step.

A group is a class of verbs that belong together; `Dataset` inherits from all of them. A verb checks its arguments,
makes a node, and returns `self._new(node)`. Groups name `Dataset` in annotations alone: at runtime it is they that it
is made of.
"""

import itertools
from typing import TYPE_CHECKING, Any, Generic, cast

from penstock._graph._nodes import FlatMap, Map, Node, Reindex, WindowShuffle, chain, root
from penstock._graph._verify import need_name, refuse
from penstock._seeds import derive

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock._dataset._dataset import Dataset

    T_co = TypeVar("T_co", covariant=True, default=Any)  # `Dataset` alone means `Dataset[Any]`
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


class Verbs(Generic[T_co]):
    """A description, and what its verbs share. `T_co` is the type of the elements."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def node(self) -> Node:
        """The description itself: a tree of frozen nodes. Internal; its form may change."""
        return self._node

    def _new(self, node: Node) -> "Dataset[Any]":
        """Return the dataset that a node describes; the verb's signature says what its elements are."""
        return cast("Dataset[Any]", type(self)(node))

    def _random_step(self, default: str, explicit: str | None = None) -> tuple[str, int]:
        """Return the name of a step that draws random numbers, and the seed of its stream."""
        name = self._step_name(default, explicit)
        return name, derive(root(self._node).seed, name)

    def _step_name(self, default: str, explicit: str | None) -> str:
        """Return the step's name: the explicit one, or the default with its ordinal, counted from the source."""
        taken = {step.name for step in chain(self._node) if isinstance(step, Map | Reindex | FlatMap | WindowShuffle)}
        if explicit is not None:
            need_name(explicit)
            if explicit in taken:
                refuse(self._node, f"two steps can't share the name {explicit!r}; give one of them another name=")
            return explicit
        names = (default if ordinal == 1 else f"{default}#{ordinal}" for ordinal in itertools.count(1))
        return next(name for name in names if name not in taken)

"""The dataset: all verbs together, what Python asks of a sequence, and how a dataset is looked at."""

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from penstock import _graph, _plan
from penstock._dataset._batches import BatchVerbs
from penstock._dataset._elements import ElementVerbs
from penstock._dataset._order import OrderVerbs, chosen
from penstock._dataset._packing import PackingVerbs
from penstock._dataset._verbs import T_co
from penstock._graph._describe import html_text, tree_text, verb_text
from penstock._graph._fingerprint import fingerprint
from penstock._graph._length import length
from penstock._graph._nodes import Element, chain
from penstock._graph._verify import finite_length, need_count, need_end, need_indexable
from penstock.batching._leaf import element_spec
from penstock.sampling import Slice

if TYPE_CHECKING:
    from penstock._plan import Explanation


class Dataset(OrderVerbs[T_co], ElementVerbs[T_co], BatchVerbs[T_co], PackingVerbs[T_co]):
    """A lazy description of data: what the model sees at step N is a pure function of it and N.

    Made by `read` and `range`; every verb returns a new dataset. Datasets are values: immutable, comparable with `==`,
    picklable if their functions are. Indexing, `len` and iteration follow Python and speak of epoch 0; a `Loader` goes
    through the epochs.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.range(10, seed=7).shuffle().map(float)
        >>> dataset
        map(float): 10
          └ shuffle(): 10
            └ read(Range(0, 10, 1)): 10
        >>> dataset[2:4][0] == dataset[2], sorted(dataset)[:3]
        (True, [0.0, 1.0, 2.0])
    """

    __slots__ = ()

    def check(self, count: int = 8) -> None:
        """Evaluate elements twice, and raise a GraphError that names a step which isn't a function of its input.

        Args:
            count: how many elements to look at, spread over the dataset and two epochs.

        Example:
            >>> import penstock as ps
            >>> ps.range(10).map(str).check()
        """
        _graph.check_graph(self._node, need_count("count", count, 1))

    @property
    def element_spec(self) -> Any:  # noqa: ANN401 - the structure of the user's elements
        """The structure of an element, with a shape and dtype for every leaf; read off the first. None if empty.

        Example:
            >>> import penstock as ps
            >>> ps.range(8).batch(4).element_spec
            LeafSpec(shape=(4,), dtype=dtype('int64'))
        """
        first = next(iter(self), None)
        return None if first is None else element_spec(first)

    def explain(self, *, evaluate: bool = True) -> "Explanation":
        """Return what the dataset is and how it will be read, in words: who computes what, how ranks end, and more.

        Args:
            evaluate: compute the first element, to tell its structure; an error that this raises is shown.

        Example:
            >>> import penstock as ps
            >>> sections = dict(ps.range(10).shuffle().batch(4).explain().sections)
            >>> print(sections["ranks"][0])
            2 ranks end on the same step: each row's position is known
        """
        return _plan.explain(self._node, evaluate=evaluate)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What identifies the dataset in a state: digests of its source, its order and its functions.

        Example:
            >>> import penstock as ps
            >>> ps.range(8).fingerprint == ps.range(9).fingerprint
            False
        """
        parts = fingerprint(self._node)
        return {"source": parts.source, "order": parts.order, "functions": parts.functions}

    def __len__(self) -> int:
        return finite_length(self._node)

    def __bool__(self) -> bool:
        return True  # an ordered dataset has no length, and `if dataset:` must not ask for it

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> "Dataset[T_co]": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "T_co | Dataset[T_co]":
        """Return the element at a position of epoch 0, or a dataset of a slice of them.

        Raises:
            IndexError: if there is no such position.
        """
        total = need_indexable(self._node, "indexing", "Iterate over it, or index before that step.")
        if isinstance(index, slice):
            need_end(self._node, _slice_text(index), counts_from_end=_counts_from_end(index))
            return self._new(chosen(self._node, Slice.from_slice(index, total), _slice_text(index)))
        position = operator.index(index)
        need_end(self._node, f"[{position}]", counts_from_end=position < 0)
        if not -total <= position < total:
            raise IndexError(f"position must be in [{-total}, {total}); got {position}")
        element: T_co = _graph.element_at(self._node, 0, position % total, _graph.Context())
        return element

    def __iter__(self) -> Iterator[T_co]:
        return _graph.elements(self._node, 0, 0, _graph.Context())

    def __eq__(self, other: object) -> bool:
        return self._node == other.node if isinstance(other, Dataset) else NotImplemented

    def __hash__(self) -> int:
        # Without the source: it may be unhashable, and its repr may differ between equal ones.
        read, *steps = chain(self._node)
        return hash((length(read), tuple(map(verb_text, steps))))

    def __repr__(self) -> str:
        return tree_text(self._node)

    def _repr_html_(self) -> str:
        first: list[Element] = []
        for element in self:
            first.append(element)
            if len(first) == 8:
                break
        return html_text(self._node, first)


def _counts_from_end(index: slice) -> bool:
    """Return whether a slice's bounds depend on where the elements end."""
    backwards = index.step is not None and index.step < 0
    first, last = (index.stop, index.start) if backwards else (index.start, index.stop)
    return last is None or last < 0 or (first is not None and first < 0)


def _slice_text(index: slice) -> str:
    bounds = [index.start, index.stop] + ([] if index.step is None else [index.step])
    return f"[{':'.join('' if bound is None else str(bound) for bound in bounds)}]"

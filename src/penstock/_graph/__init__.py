"""Nodes, of which every dataset is made, and the functions that read them. Nothing here starts a thread or is async."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._graph._apply import Context as Context
    from penstock._graph._check import check_graph as check_graph
    from penstock._graph._evaluate import element_at as element_at
    from penstock._graph._in_order import elements as elements
else:
    # A program that only describes a dataset needs the nodes, and not the modules that evaluate them.
    __getattr__ = _lazy.from_modules(
        __name__,
        Context="penstock._graph._apply",
        check_graph="penstock._graph._check",
        element_at="penstock._graph._evaluate",
        elements="penstock._graph._in_order",
    )

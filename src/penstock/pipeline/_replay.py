"""Training with free data: a few items that are given again and again, to see what the loading of data costs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import TypeVar, cast

from penstock.errors import UsageError
from penstock.pipeline._checks import check_count

T = TypeVar("T")


def replay(
    items: Iterable[T], *, keep: int = 4, warm_up: int | None = None, stop_after: int | None = None
) -> Iterator[T]:
    """Yield the first items of an iterable as they come, then the last few of these again and again.

    From then on nothing is loaded, so the time of a training step is that of a step whose data costs nothing: the most
    that a faster pipeline or loader can bring. The iterable may be a pipeline, a loader, or anything else; its iterator
    is closed after the warm-up, if it can be, so that no worker computes any more.

    Args:
        items: what is iterated over once.
        keep: how many items are kept, at least 1. They stay in memory. Default 4.
        warm_up: how many items come as they are loaded, at least `keep`: as many steps as a trainer needs to get up to
            speed. Default None: `keep`.
        stop_after: how many items come in all, at least 1. Default None: without an end.

    Returns:
        The iterator. If the items end before the warm-up, the replay begins there.

    Raises:
        UsageError: a wrong argument; or, from the iterator, there are no items.

    Example:
        >>> from penstock.pipeline import replay
        >>> list(replay(range(100), keep=2, warm_up=5, stop_after=10))
        [0, 1, 2, 3, 4, 3, 4, 3, 4, 3]
    """
    check_count("keep", keep)
    if warm_up is not None and warm_up < keep:
        raise UsageError(
            f"warm_up is at least keep, since the last items of the warm-up are kept; got warm_up={warm_up!r} and "
            f"keep={keep}. Give a larger warm_up, or a smaller keep"
        )
    if stop_after is not None:
        check_count("stop_after", stop_after)
    return islice(_replayed(items, keep, keep if warm_up is None else warm_up), stop_after)


def _replayed(items: Iterable[T], keep: int, warm_up: int) -> Iterator[T]:
    kept: deque[T] = deque(maxlen=keep)
    iterator = iter(items)
    for item in islice(iterator, warm_up):
        kept.append(item)
        yield item
    close = getattr(iterator, "close", None)
    if callable(close):
        cast("Callable[[], object]", close)()
    if not kept:
        raise UsageError(
            f"a replay needs at least one item; got none of {items!r:.200}. Give an iterable that has items"
        )
    del items, iterator
    yield from cycle(kept)

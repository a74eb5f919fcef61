"""Replay of a few items without end, which shows how fast a training loop would run if loading data took no time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import TypeVar, cast

from penstock._only_next import only_next
from penstock.errors import UsageError
from penstock.pipeline._stages import check_count

T = TypeVar("T")


def replay(
    items: Iterable[T], *, keep: int = 4, warm_up: int | None = None, stop_after: int | None = None
) -> Iterator[T]:
    """Yield the first items of an iterable as they are loaded, then repeat the last few of them.

    Nothing is loaded during the replay, so the time of a training step is a lower bound: no pipeline or loader, however
    fast, makes it shorter. The iterable may be a pipeline, a loader, or anything else; its iterator is closed after the
    warm-up, if it has a `close`, so that no worker computes any more.

    Args:
        items: the iterable; one iterator is made of it.
        keep: how many items are kept and repeated, at least 1. They stay in memory. Default 4.
        warm_up: how many items are yielded as they are loaded, at least `keep`: as many steps as a trainer needs to
            reach its full speed. Default None: `keep`.
        stop_after: how many items are yielded in all, at least 1. Default None: no end.

    Returns:
        The iterator. If the items run out during the warm-up, the replay starts there.

    Raises:
        UsageError: an argument is wrong; or, from the iterator, the iterable has no items.

    Example:
        >>> from penstock.pipeline import replay
        >>> list(replay(range(100), keep=2, warm_up=5, stop_after=10))
        [0, 1, 2, 3, 4, 3, 4, 3, 4, 3]
    """
    check_count("keep", keep)
    if warm_up is not None and warm_up < keep:
        raise UsageError(
            f"warm_up is at least keep, since the last items of the warm-up are kept; got warm_up={warm_up!r} and "
            f"keep={keep}. Pass a larger warm_up, or a smaller keep"
        )
    if stop_after is not None:
        check_count("stop_after", stop_after)
    return islice(_replayed(items, keep, keep if warm_up is None else warm_up), stop_after)


def _replayed(items: Iterable[T], keep: int, warm_up: int) -> Iterator[T]:
    kept: deque[T] = deque(maxlen=keep)
    iterator = iter(items)
    for item in islice(only_next(iterator), warm_up):
        kept.append(item)
        yield item
    close = getattr(iterator, "close", None)
    if callable(close):
        cast("Callable[[], object]", close)()
    if not kept:
        raise UsageError(f"a replay needs at least one item; {items!r:.200} has none. Pass an iterable that has items")
    del items, iterator
    yield from cycle(kept)

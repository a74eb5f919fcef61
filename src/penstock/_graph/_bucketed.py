"""What bucketing means where elements come in order: plain Python, one element at a time. The definition."""

import functools
from collections.abc import Callable, Iterator

from penstock._graph._apply import Place
from penstock._graph._nodes import Bucket, Element
from penstock._graph._packed import where_read

Placed = tuple[Element, Place]


def bucketed(step: Bucket, below: Iterator[Placed]) -> Iterator[Placed]:
    """Yield a batch whenever a bucket has its rows, and at the end what is left, with the place of the first row."""
    told = step.bucketing
    waiting: list[list[Placed]] = [[] for _ in told.boundaries]
    for element, place in below:
        number = bucket_of(step, element, functools.partial(_same, place))
        waiting[number].append((element, place))
        if len(waiting[number]) == told.rows[number]:
            yield _merged(step, number, waiting[number])
            waiting[number] = []
    for number, rows in enumerate(waiting):
        if rows and told.keep_short:
            yield _merged(step, number, rows)


def _same(place: Place) -> Place:
    return place


def _merged(step: Bucket, number: int, rows: list[Placed]) -> Placed:
    return step.bucketing.merge[number]([element for element, _ in rows]), rows[0][1]


def bucket_of(step: Bucket, element: Element, place: Callable[[], Place]) -> int:
    """Return the number of an element's bucket; an error gets a note of the element's place."""
    try:
        return step.bucketing.bucket(element)
    except Exception as error:
        error.add_note(where_read("bucket()", place()))
        raise

"""The definition of `bucket` where elements are read in order: plain Python, one element at a time."""

import functools
from collections.abc import Callable, Iterator

from penstock._graph import Bucket, Element, Location
from penstock._streaming._packed import where_read

LocatedElement = tuple[Element, Location]


def bucketed(step: Bucket, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    """Yield a batch when a bucket is full, and at the end the short ones, each with the location of its first row."""
    bucketing = step.bucketing
    waiting: list[list[LocatedElement]] = [[] for _ in bucketing.boundaries]
    for element, location in below:
        number = bucket_of(step, element, functools.partial(_same, location))
        waiting[number].append((element, location))
        if len(waiting[number]) == bucketing.rows[number]:
            yield _merged(step, number, waiting[number])
            waiting[number] = []
    for number, rows in enumerate(waiting):
        if rows and bucketing.keep_short:
            yield _merged(step, number, rows)


def _same(location: Location) -> Location:
    return location


def _merged(step: Bucket, number: int, rows: list[LocatedElement]) -> LocatedElement:
    return step.bucketing.merge[number]([element for element, _ in rows]), rows[0][1]


def bucket_of(step: Bucket, element: Element, location: Callable[[], Location]) -> int:
    """Return the number of an element's bucket; an error gets a note with the element's location."""
    try:
        return step.bucketing.bucket(element)
    except Exception as error:
        error.add_note(where_read("bucket()", location()))
        raise

"""The verbs that change elements: `map`, `random_map`, `map_with_origin` and `filter`."""

from typing import Any

import penstock as ps


def test_an_element_may_be_anything() -> None:
    """Functions get the source's records, and may return any object; None leaves out no element."""
    dataset = ps.read(["a", None, 3.5, {"k": [1]}]).map(lambda element: (element, type(element)))
    assert list(dataset) == [("a", str), (None, type(None)), (3.5, float), ({"k": [1]}, dict)]
    nones = ps.range(4).map(lambda number: number if number % 2 else None)
    with ps.Loader(nones, num_workers=2) as loader:
        assert list(loader) == list(nones) == [None, 1, None, 3]


def origin_fields(element: object, origin: ps.Origin) -> tuple[int, int, int, int]:
    """Return the fields of an origin, with the element's own key as a check."""
    assert element == origin.key
    return origin.epoch, origin.position, origin.key, origin.ordinal


def test_an_origin_names_epoch_position_and_key() -> None:
    """The position is that in the global order, and the key is the record's in the source."""
    shuffled = ps.range(6, seed=2).shuffle()
    dataset = shuffled.map_with_origin(origin_fields)
    for epoch in range(2):
        expected = [(epoch, position, key, 0) for position, key in enumerate(shuffled.epoch(epoch))]
        assert list(dataset.epoch(epoch)) == expected


def test_an_origin_in_a_part_is_that_of_the_whole() -> None:
    """A sliced or repeated element has the position of the dataset it was taken from."""
    assert [origin[1] for origin in ps.range(9)[2:8:2].map_with_origin(origin_fields)] == [2, 4, 6]
    repeated = ps.range(2).repeat(2).map_with_origin(origin_fields)
    assert list(repeated) == [(0, 0, 0, 0), (0, 1, 1, 0), (1, 0, 0, 0), (1, 1, 1, 0)]


def index_of(element: object, origin: ps.Origin) -> int | None:
    """Return an element's number over all epochs."""
    del element
    return origin.index


def indices_of(dataset: ps.Dataset[Any], epochs: int = 2) -> list[list[int | None]]:
    """Return the numbers of a dataset's elements, epoch by epoch."""
    with ps.Loader(dataset.map_with_origin(index_of)) as loader:
        return [list(loader) for _ in range(epochs)]


def test_the_index_counts_elements_over_all_epochs() -> None:
    """The index rises by one from element to element and from epoch to epoch, in any order of records."""
    assert indices_of(ps.range(4, seed=2).shuffle(), 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert indices_of(ps.range(3).sample([1, 2, 3], 2)) == [[0, 1], [2, 3]]
    assert indices_of(ps.concatenate([ps.range(2), ps.range(1)])) == [[0, 1, 2], [3, 4, 5]]
    assert indices_of(ps.zip([ps.range(2), ps.range(2)])) == [[0, 1], [2, 3]]


def test_the_index_in_a_part_is_that_of_the_whole() -> None:
    """A slice, a filter and a repeated dataset have the numbers of the dataset they are taken from."""
    assert indices_of(ps.range(9)[2:8:2]) == [[2, 4, 6], [11, 13, 15]]
    assert indices_of(ps.range(4).filter(lambda number: number % 2)) == [[1, 3], [5, 7]]
    assert indices_of(ps.range(3).repeat(2)) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert indices_of(ps.range(3).repeat().take(4), 1) == [[0, 1, 2, 3]]


def test_several_elements_of_one_share_its_index() -> None:
    """A batch has its first row's index; rows, windows and elements of a flat_map have their parent's."""
    assert indices_of(ps.range(5).batch(2)) == [[0, 2, 4], [5, 7, 9]]
    assert indices_of(ps.range(3).batch(2).unbatch()) == [[0, 0, 2], [3, 3, 5]]
    assert indices_of(ps.range(3).flat_map(lambda number: [number] * number)) == [[1, 2, 2], [4, 5, 5]]


def test_the_index_above_a_stream_is_known_where_it_has_one_epoch() -> None:
    """The length of earlier epochs is unknown; a stream without end has only one epoch."""
    assert indices_of(ps.stream(lambda: "ab")) == [[None, None], [None, None]]
    endless = ps.stream(lambda: "ab").repeat().map_with_origin(index_of).limit(5)
    assert list(endless) == [0, 1, 2, 3, 4]


def test_parts_that_are_mixed_in_order_count_by_themselves() -> None:
    """Each part of a mixture that is read in order has numbers of its own."""
    parts = {"odd": ps.range(4).filter(lambda number: number % 2), "all": ps.range(3)}
    mixed = ps.mix(parts).map_with_origin(lambda _, origin: (origin.component, origin.index))
    with ps.Loader(mixed) as loader:
        first, second = list(loader), list(loader)
    assert first == [("odd", 1), ("all", 0), ("odd", 3), ("all", 1)]
    assert second == [("odd", 5), ("all", 3), ("odd", 7), ("all", 4)]


def test_a_loader_returns_the_origin_of_any_row() -> None:
    """`Loader.origin` equals the origin in `map_with_origin`, for indexable datasets and others."""
    for rows in (ps.range(6, seed=1).shuffle(), ps.range(8).filter(lambda number: number % 4)):
        dataset = rows.map_with_origin(index_of).batch(3)
        with ps.Loader(dataset) as loader:
            for step, batch in enumerate([*loader, *loader]):
                assert [loader.origin(step, row).index for row in range(3)] == batch.tolist()


def batch_origin(batch: object, origin: ps.Origin) -> tuple[int, int]:
    """Return the position and key of a batch's origin."""
    del batch
    return origin.position, origin.key


def test_a_batch_has_the_origin_of_its_first_row() -> None:
    """Position and key are those of row 0; an unbatched row has its number as the ordinal."""
    shuffled = ps.range(7, seed=4).shuffle()
    keys = list(shuffled)
    assert list(shuffled.batch(3).map_with_origin(batch_origin)) == [(0, keys[0]), (3, keys[3]), (6, keys[6])]
    rows = shuffled.batch(3).unbatch().map_with_origin(lambda row, origin: (int(row), origin.key, origin.ordinal))
    assert list(rows) == [(key, key, position % 3) for position, key in enumerate(keys)]

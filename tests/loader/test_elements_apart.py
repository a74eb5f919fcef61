"""Elements that are made together, or chosen twice, share no memory: each is the definition's in every place."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError
from tests.equivalence.definition import epoch_of
from tests.equivalence.kinds import is_dict
from tests.places import PLACES, in_places
from tests.written import Counted, Element, Slotted, Thing, written

torch: Any = pytest.importorskip("torch")

STRUCTURE = np.dtype([("a", "i4"), ("b", "f8")])
Lists = Callable[[int], list[Element]]
EACH = 3  # pieces of one parent
PARENTS = 4


def three_of(make: Callable[[int], Element]) -> Lists:
    """Return a function that returns one object three times."""
    return lambda number: [make(number)] * EACH


def three_with(make: Callable[[int], Element]) -> Lists:
    """Return a function that returns three dicts with one object."""

    def pieces(number: int) -> list[Element]:
        shared = make(number)
        return [{"number": each, "shared": shared} for each in range(EACH)]

    return pieces


def tensor(number: int) -> Any:
    """Return a new tensor."""
    return torch.full((4,), float(number))


def aliased(number: int) -> Element:
    """Return an element with one array at two places, and two views of another one."""
    array, frames = np.full(2, number), np.arange(4) + number
    return {"a": array, "b": [array], "now": frames[:-1], "next": frames[1:]}


def overlapping(number: int) -> list[Element]:
    """Return windows of one tensor."""
    frames = torch.arange(6.0) + number
    return [frames[start : start + 3] for start in range(EACH)]


def over_an_array(number: int) -> list[Element]:
    """Return an array, a tensor over it, and a read-only view of it."""
    array = np.full(3, float(number))
    fixed = array[1:]
    fixed.flags.writeable = False
    return [array, {"x": torch.from_numpy(array)}, [fixed]]


def of_one_list(number: int) -> list[Element]:
    """Return objects that hold one list."""
    inner = [number]
    return [Thing(inner), Slotted(inner), {"x": {"y": inner}}]


def with_lock(number: int) -> Element:
    """Return an element that can't be copied."""
    return {"lock": threading.Lock(), "x": np.full(2, number)}


LISTS: dict[str, Lists] = {
    "tensors": three_of(tensor),
    "views of a tensor": three_with(lambda number: tensor(number)[1:3]),
    "tensors with a gradient": three_of(lambda number: [torch.nn.Parameter(tensor(number)).detach()]),
    "arrays": three_with(lambda number: np.full(2, number)),
    "structures": three_of(lambda number: np.ones(2, STRUCTURE)[number % 2]),
    "arrays of objects": three_with(lambda number: np.array([[number], None], object)),
    "bytearrays": three_of(lambda number: bytearray([number, 1])),
    "sets": three_with(lambda number: {number}),
    "objects": three_of(lambda number: Thing({"x": tensor(number)})),
    "dataclasses": three_with(lambda number: Counted(tensor(number))),
    "new lists": lambda number: [[number] for _ in range(EACH)],
    "overlapping": overlapping,
    "over an array": over_an_array,
    "of one list": of_one_list,
    "aliased": lambda number: [aliased(number + each) for each in range(EACH)],
    "locks": lambda number: [with_lock(number + each) for each in range(EACH)],
}
REPEATED = [5, 3, 5, 5, 8, 3, 0, 7, 5]
THREADS = PLACES["threads"]


def taken(element: Element) -> str:
    """Write to an element, and take its lock if it has one; return what it is then."""
    if is_dict(element) and "lock" in element:
        element["lock"] = element["lock"].acquire(blocking=False)
    return written(element)


def delivered(dataset: ps.Dataset, place: dict[str, Any], size: int) -> list[str]:
    """Return the elements of a loader of batches."""
    with ps.Loader(dataset.batch(size, merge=list), **place) as loader:
        return [element for batch in loader for element in batch]


def pieces_of(kind: str) -> ps.Dataset:
    """Return the pieces of lists of a kind, with positions."""
    return ps.range(PARENTS).flat_map(LISTS[kind], counts=[EACH] * PARENTS)


@pytest.mark.parametrize("kind", LISTS)
def test_pieces_of_a_list_are_apart(kind: str) -> None:
    """A function or the caller writes to each piece, repeated ones among them, as if it were the only one."""
    alone = [taken(LISTS[kind](number)[each]) for number in range(PARENTS) for each in range(EACH)]
    pieces = pieces_of(kind)
    for dataset, expected in ((pieces, alone), (pieces.select(REPEATED), [alone[each] for each in REPEATED])):
        above = dataset.map(taken)
        assert list(epoch_of(above, 0)) == expected
        for place, size in (({}, 1), ({}, 9), (THREADS, 2)):
            assert delivered(above, place, size) == expected
    in_order = ps.range(PARENTS).flat_map(LISTS[kind])
    assert delivered(in_order.map(taken), {}, 5) == alone
    assert list(map(taken, ps.Loader(in_order))) == alone
    assert list(map(taken, list(in_order))) == alone


def now_and_next(rows: Sequence[int]) -> Element:
    """Return a batch in which each row is the next one of the row before it."""
    frames = torch.arange(len(rows) + 1.0) + rows[0]
    return {"now": frames[:-1, None], "next": frames[1:, None]}


MERGES: dict[str, Callable[[Sequence[int]], Element]] = {
    "tensors": lambda rows: torch.stack([tensor(row) for row in rows]),
    "tensor of numbers": lambda rows: {"x": torch.tensor(rows), "y": np.array(rows)},
    "one row": lambda rows: {"x": tensor(rows[0]).as_strided((len(rows), 2), (0, 1))},
    "now and next": now_and_next,
    "objects": lambda rows: np.array([[rows[0]]] + [None] * len(rows), object)[[0] * len(rows)],
    "structures": lambda rows: np.ones(len(rows), STRUCTURE),
    "dataclass": lambda rows: Counted({"x": torch.tensor(rows)}, np.zeros(len(rows), np.int64)),
}


def windows_of(make: Callable[[int], Element]) -> ps.Dataset:
    """Return windows of episodes that have an object each."""
    return ps.range(3).map(lambda number: {"x": np.ones(4), "other": make(number)}).windows(2, lengths=[4] * 3)


ROWS = {kind: ps.range(12).batch(4, merge=merge).unbatch() for kind, merge in MERGES.items()}
WINDOWS = {
    "window, tensor": windows_of(tensor),
    "window, bytearray": windows_of(lambda number: bytearray([number, 1])),
    "window, dataclass": windows_of(lambda number: Counted(tensor(number))),
    "window, frames that are objects": windows_of(lambda number: np.array([[number]] * 4 + [None], object)[:4]),
    "window, lock": ps.range(3).map(lambda _: {"x": np.ones(4), "lock": threading.Lock()}).windows(2, lengths=[4] * 3),
}


@pytest.mark.parametrize("kind", [*ROWS, *WINDOWS])
def test_rows_and_windows_are_apart(kind: str) -> None:
    """Each row of a batch, and window of an episode, is as if made for it alone, whether it can be copied or not."""
    whole = (ROWS | WINDOWS)[kind]
    for dataset in (whole, whole.select(REPEATED)):
        expected = list(epoch_of(dataset.map(taken), 0))
        for place, size in (({}, 2), ({}, 9), (THREADS, 6)):
            assert delivered(dataset.map(taken), place, size) == expected
        assert list(map(taken, list(dataset))) == expected


@in_places("processes")
def test_pieces_and_rows_are_apart_in_other_processes(place: dict[str, Any]) -> None:
    """A function writes to each as if it were the only one."""
    pieces = [pieces_of(kind) for kind in ("tensors", "dataclasses", "aliased")]
    together = ps.zip([*pieces, *ROWS.values()]).select(REPEATED).map(taken)
    assert delivered(together, place, 4) == list(epoch_of(together, 0))


def test_a_list_whose_elements_share_what_can_not_be_copied_is_an_error() -> None:
    """It names the step, by position and in a loader."""
    dataset = ps.range(2).flat_map(three_with(lambda _: threading.Lock()), counts=[EACH] * 2, name="locks")
    for compute in (lambda: dataset[0], lambda: list(ps.Loader(dataset))):
        with pytest.raises(UsageError, match="elements that share memory must be copyable") as caught:
            compute()
        assert "in step 'locks' at epoch 0, position 0, key 0" in caught.value.__notes__


MEAN = np.ones((1, 2))


def with_mean(element: Any) -> Element:
    """Return a batch with an array that each batch has; the text lets it travel as a pickle."""
    return {"x": element, "mean": MEAN, "text": "a"}


def with_mean_beside(element: Any) -> Element:
    """Return an element with that array, and with one of one axis, which is joined to those of others on its way."""
    return {"x": np.full(3, element), "mean": MEAN}


SHARING: dict[str, ps.Dataset[Any]] = {
    "batches": ps.range(80).batch(2).map(with_mean),
    "elements": ps.range(40).map(with_mean),
    "read in order": ps.range(400).filter(lambda number: number >= 0).map(with_mean),
    "joined": ps.range(400).filter(lambda number: number >= 0).map(with_mean_beside),
}


@in_places("processes")
@pytest.mark.parametrize("kind", SHARING)
def test_batches_of_other_processes_are_apart(kind: str, place: dict[str, Any]) -> None:
    """The consumer writes to each batch as if it were the only one, though a function gives all of them one array."""
    found: set[float] = set()
    with ps.Loader(SHARING[kind], **place) as loader:
        for batch in loader:
            found.add(float(batch["mean"].max()))
            batch["mean"] += 1
    assert found == {1.0}

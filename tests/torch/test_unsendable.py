"""Datasets that can't be sent to worker processes: torch's own workers load them, so that no script fails."""

import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from operator import attrgetter, itemgetter
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from penstock.errors import StateError
from penstock.torch import DataLoader
from tests.torch.conformance.datasets import Streamed


class Counted:
    """Numbers, beside an epoch that the program writes."""

    def __init__(self, epoch: Any, read: Callable[[Any], int]) -> None:
        self.epoch = epoch
        self.read = read

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.read(self.epoch)


def in_order(rows: Counted) -> Any:
    """Return the same as an iterable dataset."""
    return Streamed(lambda worker, workers: map(rows.__getitem__, range(4)))


def of_shared(tensor: torch.Tensor) -> int:
    """Return the first number of a tensor, and count the call in the second."""
    tensor[1] += 1
    return int(tensor[0])


def unchanged(rows: list[Any]) -> list[Any]:
    """Return the elements: torch's workers send lists without shared memory."""
    return rows


VALUE: Any = multiprocessing.Value("i", 0)  # made once: the module keeps its shared memory
WHOLE = [[[(0, epoch), (1, epoch)], [(2, epoch), (3, epoch)]] for epoch in range(3)]
"""The batches of three epochs."""
OF_VALUE = Counted(VALUE, attrgetter("value"))
OF_LOCK = Counted([threading.Lock(), 0], itemgetter(1))


@pytest.mark.parametrize(
    ("rows", "write", "arguments"),
    [
        (OF_VALUE, partial(setattr, VALUE, "value"), {"persistent_workers": True}),
        (in_order(OF_VALUE), partial(setattr, VALUE, "value"), {}),
        (OF_LOCK, partial(OF_LOCK.epoch.__setitem__, 1), {}),
    ],
)
def test_workers_see_what_the_program_writes(rows: Any, write: Any, arguments: dict[str, Any]) -> None:
    """Each epoch has the value that the program wrote before it, as with torch's loader, with one warning in all."""
    loader = DataLoader[Any](rows, batch_size=2, num_workers=1, collate_fn=unchanged, **arguments)
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for epoch in range(3):
            write(epoch)
            found.append(list(loader))
    assert found == WHOLE
    (warning,) = (each for each in caught if each.category is UserWarning)
    assert "torch's own workers load this dataset" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_workers_share_the_tensors_that_the_program_shares(kind: str) -> None:
    """Kept workers see what the program writes to a tensor in shared memory, and it sees what they write."""
    shared: Any = cast("Any", torch.zeros(2)).share_memory_()
    rows: Any = Counted(shared, of_shared)
    dataset = rows if kind == "rows" else in_order(rows)
    loader = DataLoader[Any](dataset, batch_size=2, num_workers=1, persistent_workers=True, collate_fn=unchanged)
    for epoch in range(3):
        shared[0] = epoch
        assert list(loader) == WHOLE[epoch]
        assert int(shared[1]) == 4 * (epoch + 1)
    assert loader.stats()  # of Penstock's own workers


UNFOUND = """
from typing import NamedTuple

class Row(NamedTuple):
    number: int

class Rows:
    def __len__(self):
        return 80

    def __getitem__(self, index):
        return Row(index)
"""


def test_datasets_of_modules_that_workers_do_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent by value; without cloudpickle torch's workers load them, and the warning names the module."""
    module: Any = ModuleType("unfound_rows")
    exec(UNFOUND, module.__dict__)
    monkeypatch.setitem(sys.modules, "unfound_rows", module)
    expected = [(True, [index, index + 1]) for index in range(0, 80, 2)]
    loader = DataLoader[Any](module.Rows(), batch_size=2, num_workers=1)
    assert [(type(batch) is module.Row, batch.number.tolist()) for batch in loader] == expected
    assert loader.stats()  # of Penstock's own workers
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    loader = DataLoader[Any](module.Rows(), batch_size=2, num_workers=1)
    with pytest.warns(UserWarning, match="torch's own workers load this dataset.*the module unfound_rows along"):
        assert [(type(batch) is module.Row, batch.number.tolist()) for batch in loader] == expected


class Connected(Counted):
    """Numbers that can be pickled, and not be rebuilt."""

    def __setstate__(self, state: object) -> None:
        raise OSError("no connection")


def test_datasets_that_workers_can_not_rebuild() -> None:
    """The error is that of the dataset, and its note names the class and the remedy."""
    rows: Any = Connected(0, int)
    with pytest.raises(OSError, match="no connection") as caught:
        next(iter(DataLoader[Any](rows, num_workers=1)))
    (note,) = [each for each in caught.value.__notes__ if each.startswith("a worker could not rebuild")]
    assert f"of the class {__name__}.Connected" in note
    assert "The traceback shows the cause, such as the `__setstate__` of a class" in note


def test_torch_s_workers_have_no_state_inside_an_epoch() -> None:
    """A state is that of the epoch's start, with a warning, and one from inside an epoch is refused."""
    rows: Any = OF_VALUE
    VALUE.value = 0
    loader = DataLoader[Any](rows, batch_size=2, num_workers=1, collate_fn=unchanged)
    inline = DataLoader[Any](rows, batch_size=2, collate_fn=unchanged)
    next(iter(inline))
    loader.load_state_dict(inline.state_dict())
    with pytest.warns(UserWarning, match="can't be sent"), pytest.raises(StateError, match="no state inside an epoch"):
        iter(loader)
    next(iter(loader))
    with pytest.warns(UserWarning, match="Resuming from this state restarts the epoch"):
        state = loader.state_dict()
    with pytest.warns(UserWarning, match="restarts"):
        loader.load_state_dict(state)
    assert list(loader) == WHOLE[0]

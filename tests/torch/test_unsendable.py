"""Datasets that can't be sent to worker processes: torch's own workers load them, so that no script fails."""

import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable
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
    return Streamed(lambda *_: map(rows.__getitem__, range(4)))


def of_value(epoch: Any) -> int:
    """Return the number of a `multiprocessing.Value`."""
    return int(epoch.value)


def of_shared(tensor: torch.Tensor) -> int:
    """Return the first number of a tensor, and count the call in the second."""
    tensor[1] += 1
    return int(tensor[0])


def of_locked(epoch: Any) -> int:
    """Return the number beside a lock."""
    with epoch[0]:
        return int(epoch[1])


def unchanged(rows: list[Any]) -> list[Any]:
    """Return the elements: torch's workers send lists without shared memory."""
    return rows


# Made once: the module keeps the shared memory of its values.
VALUE: Any = multiprocessing.Value("i", 0)
ROWS: dict[str, tuple[Counted, Callable[[Any, int], object]]] = {
    "value": (Counted(VALUE, of_value), lambda epoch, n: setattr(epoch, "value", n)),
    "lock": (Counted([threading.Lock(), 0], of_locked), lambda epoch, n: epoch.__setitem__(1, n)),
}


@pytest.mark.parametrize(
    ("name", "kind", "arguments"),
    [("value", "rows", {"persistent_workers": True}), ("value", "stream", {}), ("lock", "rows", {})],
)
def test_workers_see_what_the_program_writes(name: str, kind: str, arguments: dict[str, Any]) -> None:
    """Each epoch has the value that the program wrote before it, as with torch's loader, with one warning in all."""
    rows, write = ROWS[name]
    dataset: Any = rows if kind == "rows" else in_order(rows)
    loader = DataLoader[Any](dataset, batch_size=2, num_workers=1, collate_fn=unchanged, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for epoch in range(3):
            write(rows.epoch, epoch)
            assert list(loader) == [[(0, epoch), (1, epoch)], [(2, epoch), (3, epoch)]]
    texts = [str(each.message) for each in caught if each.category is UserWarning]
    assert len(texts) == 1
    assert "torch's own workers load this dataset" in texts[0]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_workers_share_the_tensors_that_the_program_shares(kind: str) -> None:
    """Kept workers see what the program writes to a tensor in shared memory, and it sees what they write."""
    shared: Any = cast("Any", torch.zeros(2)).share_memory_()
    rows: Any = Counted(shared, of_shared)
    dataset = rows if kind == "rows" else in_order(rows)
    loader = DataLoader[Any](dataset, batch_size=2, num_workers=1, persistent_workers=True, collate_fn=unchanged)
    for epoch in range(3):
        shared[0] = epoch
        assert list(loader) == [[(0, epoch), (1, epoch)], [(2, epoch), (3, epoch)]]
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
    rows: Any = Counted(VALUE, of_value)
    write = ROWS["value"][1]
    write(VALUE, 0)
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
    assert list(loader) == [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]

"""Datasets over mapped files: workers map the file again, and don't get a copy of its bytes."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.torch import DataLoader

COUNT = 20_000
SHARED: Any = [multiprocessing.RawArray("i", range(4)) for _ in range(2)]  # made once: the module keeps the memory


class Parts:
    """Arrays and tensors by name."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> tuple[str, object]:
        name, part = list(self.parts.items())[index]
        return name, described(part)


class Written(Parts):
    """The same; the first number of each is written to."""

    def __getitem__(self, index: int) -> tuple[str, object]:
        name, part = list(self.parts.items())[index]
        part[0] = 7
        return name, list(map(int, part[:2]))


def described(part: Any) -> tuple[object, ...]:
    """Return the values of an array or tensor, what it is, and the file that its memory maps."""
    kind = part.__class__
    values = [int(each) if kind is torch.Tensor else each.item() for each in part.flatten()[:5]]
    if kind is torch.Tensor:
        return kind, values, part.stride(), _file_at(part.data_ptr())
    memmap = [str(getattr(part, name, "")) for name in ("filename", "mode", "offset")]
    layout = part.dtype, part.strides, part.flags.writeable
    return kind, values, memmap, layout, _file_at(part.__array_interface__["data"][0])


def _file_at(address: int) -> str:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, *_, path = line.split()
        start, stop = (int(each, 16) for each in place.split("-"))
        if start <= address < stop:
            return path if path.startswith("/") and not path.startswith("/memfd") else ""
    return ""


def through(dataset: Parts) -> dict[str, object]:
    """Return what a worker finds."""
    given: Any = dataset
    return dict(DataLoader[Any](given, batch_size=None, num_workers=1, collate_fn=tuple))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of numbers."""
    found = tmp_path / "numbers.bin"
    np.arange(COUNT, dtype=np.int32).tofile(found)
    return found


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_workers_map_the_file(path: Path) -> None:
    """Arrays of each mode, their views, and tensors are what they are in the program, over the same file."""
    rows: Any = np.memmap(path, np.int32, "r", shape=(COUNT // 10, 10))
    over_array: Any = vars(torch)["from_numpy"](rows)
    parts: dict[str, Any] = {
        "r": rows,
        "r+": np.memmap(path, np.int32, "r+", offset=4000),
        "c": np.memmap(path, np.int32, "c"),
        "fortran": np.memmap(path, np.int32, "r", shape=(10, COUNT // 10), order="F"),
        "backwards": rows[7:3:-1, ::-2],
        "plain": np.asarray(rows).T,
        "fields": np.asarray(rows)[1].view([("a", "<i4"), ("b", "<i4")]),
        "from_file": torch.from_file(str(path), size=COUNT, dtype=torch.int32),
        "shared from_file": torch.from_file(str(path), shared=True, size=COUNT, dtype=torch.int32),
        "over an array": over_array[3:, 2:],
    }
    assert {described(each)[-1] for each in parts.values()} == {str(path)}
    assert through(Parts(parts)) == {name: described(each) for name, each in parts.items()}


def test_writes_of_workers(path: Path) -> None:
    """They go to the file where the program's do, and else stay in the worker."""
    shared, private = np.memmap(path, np.int32, "r+"), np.memmap(path, np.int32, "c")
    tensor = torch.from_file(str(path), size=COUNT, dtype=torch.int32)
    assert through(Written({"private": private, "tensor": tensor})) == {"private": [7, 1], "tensor": [7, 1]}
    assert (int(shared[0]), int(private[0]), int(tensor[0])) == (0, 0, 0)
    assert through(Written({"shared": shared})) == {"shared": [7, 1]}
    assert int(shared[0]) == 7


def test_workers_fill_memory_that_the_program_shares() -> None:
    """Arrays and tensors over shared memory of multiprocessing have what workers write to them, as with forks."""
    array: Any = np.frombuffer(SHARED[0], np.int32)
    tensor: Any = torch.frombuffer(SHARED[1], dtype=torch.int32)
    assert through(Written({"array": array, "tensor": tensor})) == {"array": [7, 1], "tensor": [7, 1]}
    assert (array.tolist(), [int(each) for each in tensor]) == ([7, 1, 2, 3], [7, 1, 2, 3])


def test_files_that_lack_the_data(path: Path) -> None:
    """Data that was written to memory alone arrives, and so does data that is in no file of that name any more."""
    changed, replaced = np.memmap(path, np.int32, "c"), np.memmap(path, np.int32, "r")
    tensor = torch.from_file(str(path), size=COUNT, dtype=torch.int32)
    changed[1] = tensor[1] = -1
    found: Any = through(Parts({"changed": changed, "tensor": tensor}))
    assert (found["changed"][1], found["tensor"][1]) == ([0, -1, 2, 3, 4], [0, -1, 2, 3, 4])
    path.unlink()
    for name in (path, f"{path} (deleted)"):  # as the kernel shows it now
        np.zeros(COUNT, np.int32).tofile(name)
    found = through(Parts({"replaced": replaced[1:]}))
    assert found["replaced"][1] == [1, 2, 3, 4, 5]

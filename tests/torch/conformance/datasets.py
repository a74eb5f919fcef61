"""Datasets of the programs; at the top of a module, so that workers find them."""

import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclass
class Record:
    """No container, to torch."""

    x: int


class Numbers(Dataset[int]):
    """The integers below a bound."""

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not -self.count <= index < self.count:
            raise IndexError("out of range")
        return int(index)


class Made(Numbers):
    """Elements that a function makes of their index."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        super().__init__(count)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Streamed(IterableDataset[Any]):
    """Elements in order, which a function makes of the worker's number and the number of workers."""

    def __init__(self, make: Callable[[int, int], Iterable[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return iter(self.make(0, 1) if info is None else self.make(info.id, info.num_workers))


class AtOnce(Numbers):
    """Integers that are read in batches."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [100 + index for index in indices]


class LeavesOut(Numbers):
    """A dataset that leaves elements out of the batches that it returns, or adds some."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index for index in indices for _ in range({3: 0, 8: 0, 9: 0, 14: 2}.get(index % 20, 1))]


class NotAtOnce(Numbers):
    """A dataset that says it isn't read in batches."""

    __getitems__ = None


class Failing(Numbers):
    """Raises something else for each of some indices."""

    def __getitem__(self, index: int) -> int:
        errors: dict[int, Callable[[], BaseException]] = {
            1: lambda: ValueError("no such value"),
            3: lambda: KeyError("no such key"),
            5: lambda: TwoWords("one", "two"),
            7: lambda: OSError(2, "no such file"),
            8: lambda: AssertionError(),
        }
        if index in errors:
            raise errors[index]()
        return index


class TwoWords(Exception):
    """Can't be made of one string."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


class Drawing(Numbers):
    """Draws from all global generators, each time."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2)


class Kinds(Dataset[Any]):
    """Element (kind, row) is the row of a kind in `SAMPLES`."""

    def __getitem__(self, key: tuple[str, int]) -> Any:
        return SAMPLES[key[0]](key[1])


class WorkerInfo(Numbers):
    """The result of `get_worker_info`, without the seed."""

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        return (-1, False, -1) if info is None else (info.num_workers, info.dataset is self, info.id - info.id)


class Counting(IterableDataset[int]):
    """Integers in order, one worker's share of them where there are workers."""

    def __init__(self, count: int = 7, *, shares: bool = True) -> None:
        self.count = count
        self.shares = shares

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None or not self.shares:
            return iter(range(self.count))
        return iter(range(info.id, self.count, info.num_workers))


class OwnIterator(IterableDataset[int]):
    """A dataset that is its own iterator, which begins anew in `__iter__`."""

    at = 0

    def __iter__(self) -> "OwnIterator":
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == 5:
            raise StopIteration
        self.at += 1
        return self.at


class Rewinding(OwnIterator):
    """A dataset that is its own iterator, and rewinds itself at its end."""

    def __iter__(self) -> "OwnIterator":
        return self

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.at = 0
            raise


class OnlyNext(IterableDataset[int]):
    """A dataset whose iterator has no method but `__next__`."""

    def __iter__(self) -> Any:
        return Next()


class Next:
    """Five integers, by `next` alone."""

    at = 0

    def __next__(self) -> int:
        if self.at == 5:
            raise StopIteration
        self.at += 1
        return self.at


class Sized(Counting):
    """Integers in order, with a length that may be wrong."""

    def __init__(self, count: int, claimed: int) -> None:
        super().__init__(count)
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed


Image: Any = type("Image", (torch.Tensor,), {"__module__": __name__})
"""A class of tensors, as torchvision has some."""

SAMPLES: dict[str, Callable[[int], object]] = {
    "tensor of a subclass": lambda row: torch.full((2, 3), row).as_subclass(Image),
    "transposed tensor of a subclass": lambda row: torch.full((2, 3), row).as_subclass(Image).mT,
    "int": lambda row: row,
    "bool": lambda row: row % 2 == 0,
    "float": lambda row: row + 0.5,
    "float first": lambda row: 1.5 if row == 0 else row,
    "int first": lambda row: 1 if row == 0 else row + 0.5,
    "bool first": lambda row: True if row == 0 else row,
    "large int": lambda row: 2**62 + row,
    "too large int": lambda row: 2**63 + row,
    "str": str,
    "bytes": lambda row: str(row).encode(),
    "None": lambda row: None,
    "set": lambda row: {row},
    "object": lambda row: Record(row),
    "tensor": lambda row: torch.arange(3) + row,
    "scalar tensor": torch.tensor,
    "empty tensor": lambda row: torch.empty(0, 3),
    "float16": lambda row: torch.full((2,), row, dtype=torch.float16),
    "bfloat16": lambda row: torch.full((2,), row, dtype=torch.bfloat16),
    "complex tensor": lambda row: torch.full((2,), complex(row, 2)),
    "bool tensor": lambda row: torch.tensor([row == 0, True]),
    "transposed": lambda row: (torch.arange(6).reshape(2, 3) + row).T,
    "ragged": lambda row: torch.zeros(row + 1),
    "ragged later": lambda row: torch.zeros(2 if row < 2 else 3),
    "dtypes": lambda row: torch.tensor([1.5]) if row else torch.tensor([1]),
    "sparse": lambda row: torch.eye(2).to_sparse() * row,
    "gradient": lambda row: torch.full((2,), float(row), requires_grad=True),
    "conjugate": lambda row: torch.full((2,), complex(row, 2)).conj(),
    "parameter": lambda row: torch.nn.Parameter(torch.full((2,), float(row)), requires_grad=False),
    "array": lambda row: np.full((2, 2), row, np.float32),
    "uint16 array": lambda row: np.full((2,), row, np.uint16),
    "scalar array": lambda row: np.array(row),
    "backwards": lambda row: (np.arange(3) + row)[::-1],
    "columns": lambda row: np.asfortranarray(np.arange(6).reshape(2, 3) + row),
    "big-endian": lambda row: np.full((2,), row, ">i4"),
    "text array": lambda row: np.array([str(row)]),
    "object array": lambda row: np.array([None, row], object),
    "times": lambda row: np.array([row], "datetime64[s]"),
    "long double": lambda row: np.full((2,), row, np.longdouble),
    "memory map": lambda row: np.full((2,), row, np.int32).view(np.memmap),
    "float32": np.float32,
    "float64": np.float64,
    "int16": np.int16,
    "numpy bool": lambda row: np.bool_(row % 2),
    "numpy time": lambda row: np.datetime64(row, "s"),
    "array and tensor": lambda row: np.zeros(2) if row else torch.zeros(2),
    "tensor and int": lambda row: row or torch.tensor(1),
    "tuple": lambda row: (row, str(row)),
    "list": lambda row: [row, row + 0.5],
    "unequal lists": lambda row: [0] * (row + 1),
    "tuple and list": lambda row: [row] if row else (row,),
    "empty list": lambda row: [],
    "dict": lambda row: {"a": row, "b": torch.zeros(2) + row},
    "dict without": lambda row: {"a": row} if row else {"a": row, "b": row},
    "dict with more": lambda row: {"a": row, "b": row} if row else {"a": row},
    "dict in another order": lambda row: {"a": row, "b": 2 * row} if row else {"b": 2 * row, "a": row},
    "ordered dict": lambda row: OrderedDict[str, int](a=row, b=row),
    "default dict": lambda row: defaultdict[str, int](int, a=row),
    "namedtuple": lambda row: Point(row, torch.zeros(2) + row),
    "longer namedtuple": lambda row: (row, row, row) if row else Point(row, row),
    "nested": lambda row: {"a": [(row, {"b": np.zeros(2) + row})], "c": Point(row, (str(row),))},
}
"""Each kind of element by its name: from a row's number to the element."""

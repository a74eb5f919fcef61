"""The outcome of a program that uses a DataLoader, as a value: torch's and ours can be compared."""

import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader as TorchLoader

from penstock.torch import DataLoader
from tests.torch.conformance.untyped import torch

Loader = Callable[..., Any]
"""Torch's class, or ours."""


class Raised(NamedTuple):
    """An exception, by its type and what its message says."""

    kind: type[BaseException]
    words: str


class Outcome(NamedTuple):
    """The result or exception of a program, its warnings, and the states of the global generators after it."""

    result: object
    warnings: list[tuple[type[Warning], str]]
    generators: tuple[object, ...]


def outcome(program: Callable[[Loader], object], loader: Loader) -> Outcome:
    """Run a program from seeded generators."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = tried(lambda: described(program(loader)))
    complaints = [(each.category, essentials(str(each.message))) for each in caught]
    words: Any = np.random.get_state()
    generators: tuple[object, ...] = (random.getstate(), words[1].tolist(), torch.get_rng_state().tolist())
    return Outcome(result, complaints, generators)


def tried(call: Callable[[], object]) -> object:
    """Return what a call returns, or what it raises."""
    try:
        return call()
    except Exception as error:
        return Raised(type(error), essentials(str(error)))


def essentials(words: str) -> str:
    """Return what a message says, without the traceback of a worker, addresses and numbers of processes."""
    head, _, traceback = words.partition("Original Traceback (most recent call last):")
    last = traceback.strip().splitlines()[-1:]
    joined = " ".join([head, *last])
    joined = re.sub(r"in DataLoader worker process \d+", "in DataLoader worker process N", joined)
    joined = re.sub(r"(0x[0-9a-f]+|pid\(s\) [\d, ]+)", "…", joined)
    return re.sub(r"\s+", " ", joined.replace("penstock.torch._data_loader._data_loader", "DataLoader")).strip()


def described(value: object) -> object:
    """Return a value with its types, in a form that compares."""
    given: Any = value
    if isinstance(value, torch.Tensor):
        parts = (given.dtype, tuple(given.shape), given.requires_grad, given.is_sparse)
        return (type(given).__name__, *parts, given.detach().to_dense().tolist())
    if isinstance(value, np.ndarray):
        return ("ndarray", str(given.dtype), given.shape, given.tolist())
    if isinstance(value, Raised):
        return given
    name = type(given).__qualname__
    if isinstance(value, Mapping):
        return (name, [(key, described(each)) for key, each in given.items()])
    if isinstance(value, list | tuple):
        return (name, [described(each) for each in given])
    inner: object = getattr(given, "__dict__", None)
    plain = issubclass(type(given), str | bytes | int | float | np.generic) or inner is None
    return (name, repr(given) if plain else described(inner))


def going_on(batches: Iterator[object], most: int = 500) -> list[object]:
    """Return all that an iterator gives, and what it raises in between, to its end."""
    found: list[object] = []
    while len(found) < most:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(Raised(type(error), essentials(str(error))))
    raise AssertionError("the iterator has no end")


def differences(programs: Mapping[str, Callable[[Loader], object]]) -> dict[str, tuple[Outcome, Outcome]]:
    """Return the programs that come to something else with ours than with torch's loader: ours, theirs."""
    found: dict[str, tuple[Outcome, Outcome]] = {}
    for name, program in programs.items():
        ours, theirs = outcome(program, DataLoader), outcome(program, TorchLoader)
        if ours != theirs:
            found[name] = ours, theirs
    return found

"""Seeds for the global random generators of worker processes, and settings of the program on which results depend.

A fork continues the random generators of its parent, so workers that augment by the global functions of `random`, NumPy
or torch would all draw the same numbers. Therefore each process seeds all three.

Guarantees:
  - Each generator's seed derives from the parent's generator of the same name and from the process's number. So a
    program that seeds its generators gets the same draws in its processes from run to run, and a process that replaces
    another one draws other numbers.
  - Processes that are alive together draw differently, also where the parent has drawn nothing between their starts.
  - torch is seeded where it is loaded, and otherwise as soon as it is imported, before any code can draw from it. A
    process that never imports torch never pays for it. Where the parent hasn't loaded torch, its seed derives from
    `random`.

A program may set how torch computes (`penstock._torch_settings`), how NumPy treats floating-point errors, and the
context of `decimal`. They come with the seeds, so that functions return the same in worker processes as without them.

There are two ways to take seeds from the parent. `draw_seeds` draws from its generators, as torch's DataLoader does: a
program that seeds them a second time gets the same draws a second time. That moves the generators that training may
draw from, so a loader, which promises that workers change nothing, uses `observe_seeds`: the generators' states, which
it leaves as they are, and how many times the program has asked.
"""

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock._seeds import derive
from penstock._torch_settings import TorchSettings, adopt_torch_settings, loaded_torch, torch_settings

if TYPE_CHECKING:
    from decimal import Context as DecimalContext

_WORDS: Final = 4  # of NumPy's seed, 32 bits each
_SIGNED: Final = 0x7FFFFFFFFFFFFFFF
_TORCH: Final = "torch"

_observed: Final = itertools.count()
_seeded: Final[set[int]] = set()  # by process: a fork has another number


class GlobalSeeds(NamedTuple):
    """The seeds of a process's global generators, or of a group of processes.

    Attributes:
        python: of `random`.
        numpy: of NumPy's legacy generator.
        torch: of torch's default generators.
        torch_settings: those of the program.
        numpy_errors: as `numpy.geterr` returns them; None to leave them alone.
        decimal_context: the current context of `decimal`; None if the program has not set it.
    """

    python: int
    numpy: int
    torch: int
    torch_settings: TorchSettings = TorchSettings()
    numpy_errors: "dict[str, Any] | None" = None
    decimal_context: "DecimalContext | None" = None

    def child(self, *path: int | str) -> "GlobalSeeds":
        """Return the seeds of a process of the group: by its number, and by how many processes had that before."""
        python, numpy, torch = (derive(seed, *path) for seed in (self.python, self.numpy, self.torch))
        return self._replace(python=python, numpy=numpy, torch=torch)


def draw_seeds() -> GlobalSeeds:
    """Return seeds for a group of processes, drawn from this process's global generators."""
    python = random.getrandbits(64)
    numpy = int.from_bytes(np.random.bytes(8), "little")
    torch: Any = loaded_torch()
    if torch is None:
        return _with_settings(python, numpy, python)
    return _with_settings(python, numpy, int(torch.empty((), dtype=torch.int64).random_()))


def observe_seeds() -> GlobalSeeds:
    """Return seeds for a group of processes, from this process's global generators, which stay as they are."""
    python = _digest(random.getstate())
    numpy = _digest(np.random.get_state(legacy=False))
    torch: Any = loaded_torch()
    loaded = python if torch is None else _digest(torch.get_rng_state().numpy().tobytes())
    return _with_settings(python, numpy, loaded).child(next(_observed))


def fixed_seeds() -> GlobalSeeds:
    """Return seeds that are the same in every program, with this program's settings."""
    return _with_settings(0, 0, 0)


def seed_process(seeds: GlobalSeeds) -> None:
    """Seed this process's global generators, and take over the settings of the program."""
    _seeded.add(os.getpid())
    if seeds.numpy_errors is not None:
        np.seterr(**seeds.numpy_errors)
    if seeds.decimal_context is not None:
        sys.modules["decimal"].setcontext(seeds.decimal_context)
    random.seed(derive(seeds.python, "random"))
    np.random.seed([derive(seeds.numpy, "numpy", word) & 0xFFFFFFFF for word in range(_WORDS)])
    seed = derive(seeds.torch, "torch") & _SIGNED
    torch: Any = loaded_torch()
    if torch is not None:
        _set_up(torch, seed, seeds.torch_settings)
    elif _TORCH not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder(seed, seeds.torch_settings))


def seed_pool_process(seeds: GlobalSeeds) -> None:
    """Seed the global generators of a process of the user's own pool, at the first call; later calls change nothing.

    The pool gives such a process no number; its name is unique among the children of its parent.
    """
    if os.getpid() not in _seeded:
        seed_process(seeds.child(multiprocessing.current_process().name))


def _with_settings(python: int, numpy: int, torch: int) -> GlobalSeeds:
    return GlobalSeeds(python, numpy, torch, _settings_of_torch(), {**np.geterr()}, _decimal_context())


def _decimal_context() -> "DecimalContext | None":
    """Return the context of this thread, if the program has changed it."""
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return None
    context: DecimalContext = decimal.getcontext().copy()
    context.clear_flags()
    return None if repr(context) == repr(decimal.Context()) else context


def _settings_of_torch() -> TorchSettings:
    """Return the settings of torch; before it is loaded those of the process that started this one."""
    if loaded_torch() is None:
        return next((each.settings for each in sys.meta_path if isinstance(each, _TorchFinder)), TorchSettings())
    return torch_settings()


def _set_up(module: ModuleType, seed: int, settings: TorchSettings) -> None:
    torch: Any = module
    torch.manual_seed(seed)
    adopt_torch_settings(settings)


def _digest(state: object) -> int:
    return int.from_bytes(hashlib.blake2b(pickle.dumps(state), digest_size=8).digest(), "little")


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and seeds it when it is first imported.

    To seed it before each piece of work would be too late for a function that imports torch and draws at once.

    Attributes:
        settings: of torch, as in `GlobalSeeds`.
    """

    def __init__(self, seed: int, settings: TorchSettings) -> None:
        self._seed = seed
        self.settings = settings

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != _TORCH:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _SeedingLoader(spec, spec.loader, self)
        return spec

    def seed(self, module: ModuleType) -> None:
        """Seed torch, which was just imported."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        _set_up(module, self._seed, self.settings)


class _SeedingLoader(importlib.abc.Loader):
    """Loads a module by its own loader, which it restores, and seeds it."""

    def __init__(
        self, spec: importlib.machinery.ModuleSpec, loader: importlib.abc.Loader, finder: _TorchFinder
    ) -> None:
        self._spec = spec
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.seed(module)

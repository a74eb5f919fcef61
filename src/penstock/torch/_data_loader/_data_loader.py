"""The class that replaces torch's DataLoader, with the same arguments, errors, warnings and results.

The problem: programs rely on more than torch's batches. They rely on the order of the indices, on the moments at which
a sampler is called, and on the state in which an epoch leaves torch's generators. Workers that share the rows of all
batches can't run torch's loop, which gives each worker whole batches of its own.

The solution: all that draws runs in the caller's thread, by torch's own code or in torch's order. Workers get only what
was drawn.

- *No workers*: torch's own iterator runs. `_torch_private` puts objects into it that count what passes.
- *The base seed*: `_torch_private.begin` makes the base of torch's iterators, which draws the seed as with torch.
- *The order*: `Sampled.draw` (`_workers`) iterates over the program's sampler. It draws as far ahead as
  torch does, if a program can tell: `prefetch_factor` batches for each worker at the start, then one for each batch.
  Otherwise (`freely_drawn` in `_state`) it may draw more.
- *The draws of items*: torch seeds each worker, so an item's numbers depend on the worker. Here an item's seed derives
  from the base seed, the epoch, the batch and the row (`_seeding`), so neither the number of workers nor a crash
  changes it. This is the one difference from torch's numbers.
- *A state* has the inputs of the order, from which `_state` makes it again, and the number of delivered batches.

The indices of one batch, or of several small ones, are a job of `DrawnWork` (`_job`). The process scheduler of
`penstock._runtime` runs it as it runs the jobs of other loaders, and `_iterators` delivers the batches.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch.utils.data

from penstock._caught import Caught, raised_by_handler
from penstock._graph import need_count, need_integer
from penstock._loader import Clock
from penstock._plan import parse_memory
from penstock._properties import NotesErrors, raise_noted
from penstock._readings import Waits
from penstock.errors import StateError, UsageError
from penstock.events import WorkerDied
from penstock.sources import forget_state, forgets, load_state
from penstock.torch._data_loader._hints import Hints, TimedFetcher, name_empty
from penstock.torch._data_loader._iterators import StreamsIterator, WorkersIterator
from penstock.torch._data_loader._live import Described, LivePages
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._state import (
    Epoch,
    Pass,
    Saved,
    StreamsProgress,
    checked_state,
    empty_state,
    encoded,
    generators_restored,
    rank_samplers,
    saved_generator,
    saved_progress,
    set_generator,
    set_generators,
    start_state,
)
from penstock.torch._data_loader._torch_private import (
    base_seed_of,
    is_data_pipe,
    reported_length,
    watch_batches,
    watch_elements,
    watch_indices,
)
from penstock.torch._data_loader._worker import is_stateful
from penstock.torch._data_loader._workers import prepare_workers, sealed

T_co = TypeVar("T_co", covariant=True)
_Batch = TypeVar("_Batch")
_MAX_DEATHS: Final = 1000
_INSIDE: Final = frozenset(("reached", "streams", "dataset"))  # keys that only states inside an epoch have
_Iterator = TypeVar("_Iterator", WorkersIterator, StreamsIterator)


class DataLoader(NotesErrors, torch.utils.data.DataLoader[T_co]):
    """Loads batches as `torch.utils.data.DataLoader` does, with workers that take less memory and may die.

    It takes torch's arguments, in torch's order and with torch's meaning, and is a subclass of torch's class. Without
    workers it runs torch's own code. With workers, and a map-style dataset:

    - The unit of work is a row. All workers compute the rows of a batch and write them directly into shared memory,
      where `default_collate` would stack them. So a batch is ready sooner, `prefetch_factor` + 1 batches are in memory
      for any number of workers, and none is copied. A `collate_fn` runs in one of the workers when its rows are
      computed. A dataset with `__getitems__` is called for whole batches.
    - `random`, NumPy's and torch's global generators are seeded for each item, from the base seed that torch would
      draw, the batch, the row, and the rank of the sampler. So an item is the same for any number of workers. It draws
      other numbers than with torch's loader, where these depend on the worker. If `worker_init_fn` seeds torch, its
      seed in worker 0 takes the place of the base seed.
    - A worker that dies is replaced, and other workers compute its rows. A third crash on the same row raises an error
      that names its index.
    - Workers aren't forks of this process, so the dataset and the functions are pickled. Objects that a script without
      `if __name__ == "__main__":` defines are pickled by value. Where that isn't possible, as with a
      `multiprocessing.Value` or a lock, torch's own workers load, with one warning.

    Args:
        dataset: the dataset to load from, map-style or iterable.
        batch_size: the number of elements of a batch; None for single elements.
        shuffle: True shuffles the order in every epoch.
        sampler: an iterable of indices, in place of `shuffle`.
        batch_sampler: an iterable of lists of indices, in place of batch_size, shuffle, sampler and drop_last.
        num_workers: the number of worker processes; 0 loads in the caller's thread.
        collate_fn: makes a batch of a list of elements; by default torch's.
        pin_memory: True copies batches to pinned memory.
        drop_last: True leaves out a last batch that isn't full.
        timeout: the maximum seconds to wait for a batch; 0 waits without limit. The start of the workers doesn't count,
            up to a minute.
        worker_init_fn: called with the worker's number in each worker.
        multiprocessing_context: "spawn" starts a new Python for each worker. All others, and None, fork a clean process
            that has imported the modules that workers need; never this one, whose threads and memory a fork would
            inherit.
        generator: draws the order and the base seed; None for torch's global one.
        prefetch_factor: the number of batches loaded ahead, by all workers together, at least 1; by default 2. More are
            loaded if they take at most 16 MB in all, up to two for each worker, or, where torch's own samplers give the
            order, as many as the workers make in some milliseconds; one more for each worker if the dataset returns
            whole batches or elements aren't batched; and enough for two rows for each worker.
        persistent_workers: True keeps the workers from one epoch to the next.
        pin_memory_device: deprecated by torch.
        in_order: False delivers batches as they become ready.
        num_batch_workers: the number of workers that may collate at once, at least 1; by default any number.
        num_workers_batches: an older name of `num_batch_workers`.
        memory: a bound in bytes, or text such as "2GiB", for the batches that are being made, are ready, or are held by
            the program, whatever `prefetch_factor` says. It must have room for two batches; with an iterable dataset
            each worker gets an equal part of it, for two batches of its own. None, the default, bounds their number.
        strict: True raises the error of pickle where False, the default, lets torch's own workers load.

    Raises:
        ValueError: for a wrong argument, as torch raises it.

    Example:
        >>> from penstock.torch import DataLoader
        >>> [batch.tolist() for batch in DataLoader(range(5), batch_size=2)]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: "torch.utils.data.Dataset[T_co]",
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: "torch.utils.data.Sampler[Any] | Iterable[Any] | None" = None,
        batch_sampler: "torch.utils.data.Sampler[list[Any]] | Iterable[list[Any]] | None" = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: "torch.Generator | None" = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        num_batch_workers: int | None = None,
        num_workers_batches: int | None = None,
        memory: int | str | None = None,
        strict: bool = False,
    ) -> None:
        newer: dict[str, Any] = {} if in_order else {"in_order": False}  # there from torch 2.6 on
        parent: Any = super()
        parent.__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **newer,
        )
        need_integer("num_workers", num_workers)  # torch accepts any number, and fails later, in iter()
        self.in_order = in_order
        self.num_batch_workers: int | None = _merging(num_batch_workers, num_workers_batches)
        self.num_workers_batches: int | None = self.num_batch_workers
        if self.num_batch_workers is not None and not num_workers:
            raise UsageError(
                f"num_batch_workers needs workers that collate; got num_batch_workers={self.num_batch_workers} with "
                "num_workers=0. Leave it out, or let num_workers > 0"
            )
        self.memory: int | None = parse_memory(memory)
        if num_workers and not is_data_pipe(dataset):
            prepare_workers(multiprocessing_context)
        self._deaths: deque[WorkerDied] = deque(maxlen=_MAX_DEATHS)
        described = Described(_text(dataset, batch_size), num_workers, batch_size or 1)
        waits = Waits()
        self._pages = LivePages(waits, described, self._deaths)
        self._clock = Clock(waits, publisher=self._pages)
        self._hints = Hints()
        self._inline_clock = Clock(hints=self._hints)  # of batches that torch's own iterator makes in this thread
        self._has_named_empty = False
        self.strict = strict
        self._obstacle: str | None = None  # the reason why torch's own workers load
        self._epoch: Epoch | None = None  # the newest epoch of a map-style dataset
        self._saved: Saved | None = None  # the next iterator resumes from it
        self._is_polled = False  # whether a framework reads the state at every batch, needed or not
        self._is_early = False  # whether a framework sets the samplers' epoch only after iter(), as Lightning does
        self._streams_progress: StreamsProgress | None = None  # the newest, of an iterable dataset
        self._saved_progress: StreamsProgress | None = None
        self._pass: Pass | None = None  # the newest, over an iterable dataset in this thread
        self._saved_pass: Pass | None = None

    def __iter__(self) -> Any:
        """Return an iterator over an epoch's batches; after `load_state_dict`, over the rest of the saved epoch."""
        is_iterable = isinstance(self.dataset, torch.utils.data.IterableDataset)
        if not is_iterable and not self._has_named_empty:
            self._has_named_empty = name_empty(self, self.dataset, self.batch_size)
        if is_iterable and not self.num_workers:
            return self._stream_in_this_thread()
        if is_data_pipe(self.dataset):
            return super().__iter__()
        if not self.num_workers:
            saved, self._saved = self._saved, None
            return self._in_this_thread(saved)
        return self._over_streams() if is_iterable else self._over_rows()

    def _over_streams(self) -> object:
        """Return an iterator over the streams of workers."""
        progress, self._saved_progress = self._saved_progress, None
        streams = self._kept(
            lambda sent: StreamsIterator(self, sent, progress), lambda kept: kept.restart(self, progress)
        )
        if streams is None:
            return self._by_torch(is_inside=progress is not None and bool(progress.streams))
        self._streams_progress = streams.progress
        self._pages.begin_epoch(self._clock.batches, 0, reported_length(self))
        return streams

    def _over_rows(self) -> object:
        """Return an iterator over the batches that workers make of a map-style dataset."""
        saved, self._saved = self._saved, None
        early, self._is_early = self._is_early, False
        iterator = self._kept(
            lambda sent: WorkersIterator(self, sent, saved, is_early=early),
            lambda kept: kept.restart(self, saved, is_early=early),
        )
        if iterator is None:
            return self._by_torch(is_inside=saved is not None and saved.is_inside)
        self._epoch = iterator.epoch
        self._pages.begin_epoch(self._clock.batches, iterator.epoch.reached, _length(iterator))
        return iterator

    def _kept(self, begin: Callable[[Sealed], _Iterator], restart: Callable[[_Iterator], object]) -> _Iterator | None:
        """Return an iterator at the start of an epoch: a new one, or the one with the persistent workers.

        Returns:
            None if the dataset or a function can't be sent to workers.
        """
        if self._obstacle is not None:
            return None
        kept = cast("_Iterator | None", self._iterator)
        if kept is not None and self.persistent_workers:
            restart(kept)
            return kept
        sent = self._sealed()  # before a seed is drawn: torch's own iterator draws it, too
        if sent is None:
            return None
        self.check_worker_number_rationality()
        made = begin(sent)
        if self.persistent_workers:
            vars(self)["_iterator"] = made
        return made

    def _sealed(self) -> Sealed | None:
        """Return the dataset and functions, ready to be sent; None, with a warning, if they can't be."""
        try:
            return sealed(self)
        except Exception as error:
            if self.strict or raised_by_handler(error):
                raise
            self._obstacle = f"{type(error).__name__}: {error}"
        warnings.warn(
            "torch's own workers load this dataset, since it or a function can't be sent to other processes "
            f"({self._obstacle}). Their memory and their crashes are those of torch's loader, and there is no state "
            "inside an epoch. Make it picklable to use Penstock's workers, or pass strict=True for an error",
            stacklevel=5,
        )
        return None

    def _by_torch(self, *, is_inside: bool) -> object:
        """Return torch's own iterator, with torch's own workers.

        Raises:
            StateError: the loader would have to resume inside an epoch.
        """
        if is_inside:
            raise StateError(f"{self._why_lost()}; got a state inside an epoch. Begin the epoch again")
        self._epoch = self._streams_progress = None
        return super().__iter__()

    def _in_this_thread(self, saved: Saved | None) -> object:
        """Return torch's own iterator, over indices that are counted."""
        sampler: Any = _sampler_of(self)
        self._epoch = epoch = Epoch(sampler, saved, counts_drawn=True)
        with generators_restored(self) if saved is not None else nullcontext():
            iterator = super().__iter__()
        if saved is None:
            epoch.base_seed = base_seed_of(iterator)  # for workers that resume
        # A state of an epoch's start has a seed, but no indices, so the sampler draws them here.
        is_start = saved is not None and not saved.is_inside
        watch_indices(iterator, lambda indices: epoch.over(iter(sampler) if is_start else indices))
        watch_batches(iterator, lambda fetcher: TimedFetcher(fetcher, self._inline_clock, self._hints))
        return iterator

    def _stream_in_this_thread(self) -> object:
        """Return torch's own iterator over an iterable dataset, resumed if a state was loaded, and observed."""
        dataset: object = self.dataset
        resumed, self._saved_pass = self._saved_pass, None
        saved = None if resumed is None else resumed.saved
        if saved is None:
            forget_state(dataset)
        else:
            try:
                load_state(dataset, saved)
            except Exception as error:
                if raised_by_handler(error):
                    raise
                raise StateError(
                    f"{type(dataset).__qualname__} can't resume from its own part of this state "
                    f"({type(error).__name__}: {error}). Load it into the dataset that it was saved from"
                ) from error
        with generators_restored(self) if resumed is not None else nullcontext():
            iterator = super().__iter__()
        self._pass = Pass(saved)
        watch_elements(iterator, self._pass.over)
        watch_batches(iterator, lambda fetcher: TimedFetcher(fetcher, self._inline_clock, self._hints))
        return iterator

    @classmethod
    def in_place_of(cls, loader: "torch.utils.data.DataLoader[_Batch]") -> "torch.utils.data.DataLoader[_Batch]":
        """Return a loader of this class with the arguments of one of torch's, for frameworks that make loaders.

        In a loader that Accelerate has prepared, which gives each rank its part and moves batches to the device, this
        replaces only the torch loader inside, and returns the prepared loader. So call it after `Accelerator.prepare`,
        and in `get_train_dataloader` of a Hugging Face `Trainer`.

        Args:
            loader: a loader of torch's, or one that Accelerate has prepared; not iterated yet.

        Raises:
            UsageError: if it is neither, if rank 0 loads for all ranks, or if ranks would get a part of their part.

        Example:
            >>> import torch
            >>> from penstock.torch import DataLoader
            >>> theirs = torch.utils.data.DataLoader(range(5), batch_size=2)
            >>> [batch.tolist() for batch in DataLoader.in_place_of(theirs)]
            [[0, 1], [2, 3], [4]]
        """
        prepared: Any = loader
        given: Any = getattr(prepared, "base_dataloader", prepared)
        is_loader = issubclass(type(given), torch.utils.data.DataLoader)
        if not is_loader or type(prepared).__name__ == "DataLoaderDispatcher":
            raise UsageError(
                "in_place_of takes one of torch's loaders, or one that Accelerate has prepared for each rank to load "
                f"its own part; got a {type(prepared).__name__}. With Accelerate, use "
                "DataLoaderConfiguration(dispatch_batches=False): each rank then keeps its part of an iterable dataset"
            )
        dealing = rank_samplers(_sampler_of(given))
        if len(dealing) > 1:
            raise UsageError(
                f"only one sampler may take a rank's part of the data; here {' and '.join(dealing)} do, so that ranks "
                "would leave out most of it. Prepare a loader without a sampler for ranks"
            )
        rules: Any = cls
        own: DataLoader[Any] = given if issubclass(type(given), cls) else rules(**_arguments(given))
        if given is prepared:
            return own
        prepared.base_dataloader = own
        prepared.dl_state_dict = own.state_dict()
        vars(own)["_is_polled"] = True
        return loader

    def state_dict(self) -> dict[str, object]:
        """Return the loader's state in its epoch: a JSON value, of less than a kilobyte for torch's own samplers.

        Each generator that the loader or a sampler owns adds 7 kilobytes; its state is saved inside an epoch, at its
        start and at its end, so that a fresh loader with fresh generators continues with the same orders. The state
        counts delivered batches only, not those that were loaded ahead. For a sampler of another class, a resumed
        loader restores the state of torch's generator, iterates over the sampler again and skips the delivered batches;
        other randomness of such a sampler isn't saved. After an epoch's last batch the sampler is read to its end. All
        ranks that have received as many batches may resume from the state of one. An iterable dataset needs a
        `state_dict` and a `load_state_dict` of its own; the loader's state holds the dataset's. If it has none, or with
        `in_order=False`, a state inside an epoch is that of the epoch's start, with a warning.
        """
        state = self._state()
        if "lost" in state and not self._is_polled:
            warnings.warn(f"{state['lost']}. Resuming from this state restarts the epoch.", stacklevel=2)
        return state

    def _state(self) -> dict[str, object]:
        dataset: object = self.dataset
        if isinstance(dataset, torch.utils.data.IterableDataset):
            progress = self._saved_progress or self._streams_progress
            watched = self._saved_pass or self._pass
            state = _streams_state(dataset, progress if self.num_workers else watched)
        elif self._saved is not None:
            return dict(self._saved.state)
        else:
            own, sampler = _generator_of(self), _sampler_of(self)
            state = start_state(sampler, own) if self._epoch is None else self._epoch.state(own)
        reason = self._why_lost()
        if reason is not None and (state.keys() & _INSIDE or self._obstacle is not None):
            return {**empty_state(), "lost": reason}
        own = _generator_of(self)
        if own is not None:
            state["generator"] = encoded(own)
        return state

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Resume from a state: the next iterator yields the rest of that epoch, and draws no seeds.

        The number of workers may differ, except for an iterable dataset. With workers, the items of a map-style dataset
        draw the same random numbers as in an uninterrupted epoch.

        Raises:
            StateError: if it is not a state, or of a loader with another sampler, batch size or number of ranks, or
                with other indices or weights, or if a sampler has no generator now and had one.
        """
        if "lost" in checked_state(state_dict):
            warnings.warn(f"{state_dict['lost']}. The epoch in which this was saved restarts.", stacklevel=2)
            state_dict = empty_state()
        dataset: object = self.dataset
        is_inside = bool(state_dict.keys() & _INSIDE)
        own = _generator_of(self)
        if isinstance(dataset, torch.utils.data.IterableDataset) and (is_stateful(dataset) or not is_inside):
            self._load_streams(state_dict, own)
            return
        reason = self._why_lost()
        if reason is not None and is_inside:
            raise StateError(f"{reason}; got a state inside an epoch of a loader that delivers in order")
        saved = Saved(state_dict, _sampler_of(self), own)
        if saved.generator is not None and own is not None:
            set_generator(own, saved.generator)
        if not saved.is_inside:
            set_generators(_sampler_of(self), saved.made_from)
        self._saved = saved if saved.is_inside or saved.has_seed else None
        self._is_early = not saved.is_inside
        self._epoch = self._streams_progress = None

    def _load_streams(self, state: Mapping[str, object], own: "torch.Generator | None") -> None:
        """Resume from a state of an iterable dataset."""
        self._saved_progress = self._streams_progress = self._saved_pass = self._pass = None
        generator = saved_generator(state, own)
        if not self.num_workers and "dataset" in state:
            self._saved_pass = Pass(state["dataset"])
        else:
            self._saved_progress = saved_progress(state, self.num_workers)
        if generator is not None and own is not None:
            set_generator(own, generator)

    def stats(self) -> dict[str, float]:
        """Return counters for any logger, as a flat dict of floats; only batches that Penstock's workers made count.

        `batches`, delivered so far, over all epochs; `wait_seconds`, the time that the program waited for them, and
        `wait_share`, its share of the time since the first request; `batches_per_second`; `worker_restarts`, the number
        of workers that died, of the latest 1,000.
        """
        return {**self._clock.stats(), "worker_restarts": float(len(self._deaths))}

    def deaths(self) -> tuple[WorkerDied, ...]:
        """Return the latest deaths of workers, at most 1,000, oldest first."""
        return tuple(self._deaths)

    def _why_lost(self) -> str | None:
        """Return the reason why no state exists inside an epoch; None if one exists."""
        dataset: object = self.dataset
        if self._obstacle is not None:
            return f"torch's own workers load this dataset ({self._obstacle}), and they have no state inside an epoch"
        if isinstance(dataset, torch.utils.data.IterableDataset) and not is_stateful(dataset):
            if forgets(dataset):
                return (
                    f"the state of {type(dataset).__qualname__} leaves out the records in its shuffle buffer, so that "
                    "they would be lost. Shuffle a map-style dataset, or leave the buffer out"
                )
            return (
                f"an iterable dataset resumes from its own state; {type(dataset).__qualname__} "
                "has no state_dict and load_state_dict. Give it both, or use a map-style dataset"
            )
        if self.num_workers and not self.in_order:
            return "in_order=False delivers batches out of order; use in_order=True to save a state inside an epoch"
        return None

    if not TYPE_CHECKING:  # with this method type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Warn if Accelerate reads `_is_accelerate_prepared`: it is about to replace this loader."""
            raise_noted(self, name)
            if name == "_is_accelerate_prepared":
                warnings.warn(
                    "Accelerate replaces the loader that it prepares by torch's own, so this loader's workers are not "
                    "used. Prepare a torch.utils.data.DataLoader instead, then call "
                    "loader = penstock.torch.DataLoader.in_place_of(loader)",
                    stacklevel=3,
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_epoch": None}  # an epoch belongs to an iterator of this process


def _streams_state(dataset: object, at: StreamsProgress | Pass | None) -> dict[str, object]:
    """Return the state of the streams of an iterable dataset, or of its pass in this thread."""
    if not isinstance(at, Pass):
        return empty_state() if at is None else at.state()
    if at.has_ended:
        return empty_state()
    if not at.has_begun:  # many datasets keep the state of the previous pass until the next one begins
        return empty_state() if at.saved is None else {**empty_state(), "dataset": at.saved}
    return {**empty_state(), "dataset": dataset.state_dict() if is_stateful(dataset) else None}


def _arguments(loader: object) -> dict[str, Any]:
    """Return the arguments that make a loader like one of torch's."""
    given: Any = loader
    names = ["dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"]
    if given.num_workers:
        names += ["multiprocessing_context", "prefetch_factor", "persistent_workers"]
    found = {name: getattr(given, name) for name in names}
    found["in_order"] = getattr(given, "in_order", True)
    if isinstance(given.dataset, torch.utils.data.IterableDataset):
        return {**found, "batch_size": given.batch_size, "drop_last": given.drop_last}
    if type(given.batch_sampler) is torch.utils.data.BatchSampler and given.batch_size is not None:
        own: Any = given.batch_sampler
        return {**found, "sampler": own.sampler, "batch_size": own.batch_size, "drop_last": own.drop_last}
    if given.batch_sampler is not None:
        return {**found, "batch_sampler": given.batch_sampler}
    return {**found, "sampler": given.sampler, "batch_size": None}


def _sampler_of(loader: object) -> object:
    """Return the loader's batch sampler, or its sampler of indices if it has none."""
    parts: dict[str, Any] = vars(loader)
    return parts["sampler"] if parts["batch_sampler"] is None else parts["batch_sampler"]


def _generator_of(loader: object) -> "torch.Generator | None":
    parts: dict[str, Any] = vars(loader)
    own: torch.Generator | None = parts["generator"]
    return own


def _merging(count: object, older: object) -> int | None:
    if count is not None and older is not None and count != older:
        raise UsageError(
            f"num_batch_workers and num_workers_batches are two names of one argument; got {count!r} and {older!r}. "
            "Pass one of them"
        )
    given = older if count is None else count
    return None if given is None else need_count("num_batch_workers", given, 1)


def _text(dataset: object, batch_size: int | None) -> str:
    return f"DataLoader({type(dataset).__qualname__}, batch_size={batch_size})"


def _length(iterator: WorkersIterator) -> int | None:
    """Return the number of batches of an epoch; None if the sampler has no length."""
    with Caught(Exception):  # of a sampler of the user's
        return len(iterator)
    return None

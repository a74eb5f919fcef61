"""The loader: it iterates over a dataset's epochs, saves its state and resumes from it."""

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, NoReturn, Self, cast

import numpy as np

from penstock import _runtime, observe
from penstock._caught import Caught
from penstock._dataset import LOADER_NAMES, Dataset, T_co, explain_methods, loader_text
from penstock._graph import (
    Fingerprint,
    Node,
    Origin,
    Read,
    draws_by_epoch,
    fingerprint,
    is_endless,
    need_count,
    note_held_values,
    seen_past,
    varies_by_epoch,
    walk,
)
from penstock._loader._beginnings import has_delivered, line_of_caller, note_delivered, warn_if_repeated
from penstock._loader._comparison import check_allowed, compare
from penstock._loader._hints import Hints, report_of
from penstock._loader._iterator import AsyncLoaderIterator, Clock, LoaderIterator, Owner
from penstock._loader._progress import MOVED, IndexedProgress, Progress, StreamingProgress
from penstock._loader._publisher import Publisher
from penstock._loader._verify import verified
from penstock._os import PROGRAM_ENDS, Closer
from penstock._plan import (
    Limits,
    Plan,
    Shard,
    check_pool,
    check_threads,
    choose_place,
    lower,
    parse_memory,
    share_place,
)
from penstock._printable import printable
from penstock._properties import NotesErrors, raise_noted
from penstock._runtime import RemoteWorkers, Runtime, StepRange, Stream, chosen, pool_of
from penstock._state import LoaderState, Shape, State, from_json
from penstock._tracebacks import trim
from penstock.errors import ClosedError, StateError, UsageError
from penstock.events import Replaced, Skipped, Substituted, WorkerDied
from penstock.observe import Report, WhatIf
from penstock.observe._measured import timed_steps
from penstock.sources import check_length

if TYPE_CHECKING:
    from penstock._runtime import WorkerPool, Workers
    from penstock.observe import Look, Watch

_CLOSED: Final = "the loader was closed"


class SharedWorkers(NamedTuple):
    """Workers that one loader owns. They run as long as a loader holds this object, also if the owner was dropped."""

    plan: Plan
    """The plan of the owner."""
    runtime: Runtime
    closer: Closer
    """Stops the workers."""

    def need_open(self) -> None:
        """Check that the workers run.

        Raises:
            ClosedError: the owner was closed.
        """
        if not self.closer.is_open:
            ends = self.closer.ends_with_program
            raise ClosedError(PROGRAM_ENDS if ends else "the loader that owns the workers was closed; close it last")


class Loader(NotesErrors, Generic[T_co]):
    """Iterates over a dataset's epochs, computes batches ahead, and yields NumPy batches in order.

    The batches are a function of the dataset alone: the number of workers, a restart or a change of ranks only decide
    where and when they are computed. `iter(loader)` starts the next epoch at its first batch, also after a `break`; to
    continue after a break, keep the iterator. The first `iter` after `load_state_dict` yields the rest of the epoch.

    Leaving the `with` block, `close()` and garbage collection stop the workers. Delivered batches stay valid.

    To choose workers, the loader computes a few elements when it is made, and discards them. That takes at most 0.2
    seconds, or as long as a few elements take; it reads nothing from streams and async sources. The loader logs its
    choice and the reason as one line, and shows them in its `repr`.

    Args:
        dataset: the dataset to load.
        num_workers: the number of workers that compute ahead. 0, the default, computes a batch in the caller's thread
            when it is requested. "auto", the default if `workers` names a kind, measures: no workers if a batch takes
            less time than its transfer would, one per processor if elements are computed, more if they wait.
        workers: "threads" suits functions that release the GIL (decoders, NumPy on large arrays). "processes" suits
            functions that hold it; they must be picklable, and a script must guard its actions by `if __name__ ==
            "__main__":`, or have cloudpickle installed. "auto", the default, chooses threads, unless these conditions
            hold, two threads compute no more than one, and an epoch has some seconds of work. Pass "threads" if
            functions have side effects in this program, such as a count. Pass another loader to share its workers, if
            it has any, as long as it isn't closed. Each loader has its own memory, order and state, and closing or
            leaving this one doesn't affect that one; leave `num_workers` out then, and set only `num_batch_workers`
            and `read_ahead` in `limits`. Pass a `penstock.ray.Pool` to compute in processes of a Ray cluster; "ray"
            starts `num_workers` of them, by default one for each free processor, and ends them with the loader.
        isolated: True runs all of this in one helper process, its workers included, so that the trainer's process
            computes nothing and only receives. Functions and scripts must meet the conditions of "processes".
        ordered: False delivers batches as they become ready, so that a slow one doesn't delay those after it. An epoch
            then has the same batches, each exactly once, in the order of their completion; `step` and `epoch` refer to
            the batch delivered last. Ranks progress independently, so save the states of all ranks, and load each on
            its own rank: a state records the later batches that were delivered, and a loader that resumes delivers the
            others, with `ordered` True or False. `seek(step)` delivers all batches from that step on. Without workers,
            and for datasets that can only be read in order, this gains nothing, and batches come in order.
        shard: the rank whose rows of each global batch to load; by default all rows.
        prefetch: the number of batches made ready before they are requested, at least 1; counted for all workers.
        memory: a bound in bytes, or text such as "2GiB", for batches that are being made or that the consumer holds.
            A loop needs room for two batches, or for three of functions in threads. Without workers it bounds nothing.
        copy: True delivers copies, so that batches that you keep hold none of the loader's memory.
        limits: bounds that are rarely needed.

    Raises:
        UsageError: for a wrong argument.
        GraphError: for a dataset that can't be run this way. Iterating raises the exceptions of the dataset's own
            functions, with a note of step, position and key; the state is then the one before that batch.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.range(8, seed=7).shuffle().batch(4)
        >>> loader = ps.Loader(dataset)
        >>> first = next(iter(loader))
        >>> resumed = ps.Loader(dataset)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in resumed] == [dataset[1].tolist()]
        True
    """

    def __init__(  # noqa: PLR0913 - the front door; each is a decision of the user's
        self,
        dataset: Dataset[T_co],
        *,
        num_workers: int | Literal["auto"] | None = None,
        workers: "Workers | Literal['ray'] | Loader[object] | WorkerPool" = "auto",
        isolated: bool = False,
        ordered: bool = True,
        shard: Shard | None = None,
        prefetch: int = 2,
        memory: int | str | None = None,
        copy: bool = False,
        limits: Limits | None = None,
    ) -> None:
        _need_dataset(dataset)
        _need_kind(workers)
        limits = Limits() if limits is None else limits
        owner = Loader._shared(workers) if isinstance(workers, Loader) else None
        pool = pool_of(workers, num_workers)
        kind: Workers | Loader[object] = "auto"
        if workers == "ray":
            num_workers = 0
        elif pool is None:
            kind = cast("Workers | Loader[object]", workers)
        if num_workers is None:
            num_workers = "auto" if kind != "auto" and owner is None else 0
        if owner is None:
            place, count = choose_place(num_workers, kind)
        else:
            place, count = share_place(owner.plan, num_workers, limits, isolated=isolated)
        self._dataset = dataset
        note_held_values(dataset.node)  # before a function is called, which may change the values that it holds
        plan = lower(
            dataset.node,
            place=place,
            num_workers=count,
            shard=shard,
            prefetch=prefetch,
            memory=parse_memory(memory),
            copy=copy,
            limits=limits,
            ordered=ordered,
            isolated=isolated,
            remote="" if pool is None else pool.text,
        )
        if pool is not None:
            check_pool(plan, num_workers)
            self._plan: Plan = replace(plan, num_workers=pool.num_workers)
        elif isinstance(kind, Loader):
            self._plan = replace(plan, why="another loader's" if count else "")
        else:
            self._plan = chosen(plan, num_workers, kind)
        check_threads(self._plan)
        indexed = self._plan.is_indexed
        self._progress: Progress = IndexedProgress(self._plan) if indexed else StreamingProgress(self._plan)
        self._runtime = _runtime_of(self._plan, owner, pool)
        readings = self._runtime.readings
        self._hints = Hints(self._plan, readings, self._progress)
        self._publisher = Publisher(self._plan, self._runtime, self._progress)
        self._clock = Clock(readings.waits, self._hints, self._publisher)
        clock, rows = self._clock, max(self._plan.batch_size // self._plan.shard.count, 1)
        self._runtime.recorder.delivered = lambda: clock.batches * rows  # refers to the clock, not to the loader
        self._made_at = line_of_caller()
        self._iterator: weakref.ref[LoaderIterator[T_co]] | None = None
        self._moves = threading.RLock()  # one thread at a time makes an iterator, loads a state or seeks
        self._fingerprints: dict[object, Fingerprint] = {}
        self._closer = Closer(self._runtime.close)
        self._is_closing = False  # whether `close` was called; the closer is open until it has closed all
        self._workers = owner or SharedWorkers(self._plan, self._runtime, self._closer)

    # ------------------------------------------------------------------ iterating

    def __iter__(self) -> LoaderIterator[T_co]:
        """Start the next epoch, or, right after a restore or a seek, the rest of this one.

        Returns:
            An iterator over its batches; the loader has one iterator at a time.
        """
        self._need_open()
        for node in walk(self._plan.node):
            if isinstance(node, Read):
                check_length(node.source, node.length)
        with self._moves:
            self._retire_iterator("a newer iter(loader) has taken this iterator's place; keep one iterator at a time")
            at = self._progress.current()
            if (at.step, at.epoch, at.position) == (0, 0, 0) and has_delivered(self._made_at):
                warn_if_repeated(self._made_at, self._text_if_epochs_differ())
            owner = Owner(self._open_stream, self._note_end, self.state_dict, self._resume)
            iterator: LoaderIterator[T_co] = LoaderIterator(owner, self._progress, self._clock)
            self._clock.begin()
            self._iterator = weakref.ref(iterator)
        self._need_open()  # another thread may have closed the loader before it could see this iterator
        return iterator

    def _note_end(self, epoch: int, batches: int) -> None:
        """Note that an iterator has delivered all of an epoch, a number of batches."""
        if not batches:
            self._hints.name_empty(epoch, self._runtime.recorder)
        elif epoch == 0 and (dataset := self._text_if_epochs_differ()):
            note_delivered(self._made_at, dataset)

    def _text_if_epochs_differ(self) -> str:
        """Return a text that identifies the dataset; "" if its epochs are alike, or it can't be identified."""
        node, text = self._plan.node, ""
        if varies_by_epoch(node) or draws_by_epoch(node):
            with Caught(Exception):  # of a source's own fingerprint
                known = self._fingerprint_at(0, 0)
                text = f"{known.parts()} {known.details} {self._plan.shard}"
        return text

    def _resume(self, iterator: LoaderIterator[Any], state: State, begin: Callable[[], None]) -> None:
        """Load a state, and make an iterator, which `begin` takes to its step, the current one."""
        with self._moves:
            self.load_state_dict(state)
            self._iterator = weakref.ref(iterator)
            try:
                begin()
            finally:
                if not self._closer.is_open:  # another thread closed the loader before the iterator was usable
                    iterator.retire(_CLOSED)
        self._need_open()

    def _open_stream(self, step_ranges: list[StepRange]) -> Stream:
        with Caught(ClosedError) as caught:
            return self._runtime.open_stream(step_ranges)
        self._need_open()  # another thread has closed this loader, and not the owner of the workers
        if self._is_closing:
            raise ClosedError(f"{_CLOSED}; make a new one")
        raise caught.taken()

    def __aiter__(self) -> AsyncIterator[T_co]:
        return AsyncLoaderIterator(iter(self))

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch.

        Raises:
            NoLengthError: if the dataset can only be read in order, or repeats without end.
        """
        len(self._dataset)  # raises if it is read in order, or repeats without end
        return cast("IndexedProgress", self._progress).steps_per_epoch

    def __bool__(self) -> bool:
        return True  # a dataset that is read in order has no length, which `if loader:` must not need

    @property
    def epoch(self) -> int:
        """The epoch of the batch delivered last; before the first one, and after a restore or seek, of the next."""
        return self._progress.current().epoch

    @property
    def steps_done(self) -> int:
        """The number of steps done, over all epochs: 0 before the first batch, 1 after it.

        A loader that resumes has the number of the loader that saved the state; after `seek(step)` it is that step. So
        it is also the number of the next step.

        Example:
            >>> import penstock as ps
            >>> loader = ps.Loader(ps.range(8).batch(4))
            >>> before = loader.steps_done
            >>> batch = next(iter(loader))
            >>> before, loader.steps_done
            (0, 1)
        """
        return self._progress.next_step

    @property
    def step(self) -> int:
        """The global index, over all epochs and from 0, of the batch that `epoch` refers to.

        It is 0 before the first batch and after it; `steps_done` is 0 before and 1 after.
        """
        return self._progress.current().step

    @property
    def position(self) -> int:
        """The position, in its epoch, of the first element of the batch that `epoch` refers to, before batching.

        Counted over all ranks; in batches, if a step above `batch` reorders batches. For a dataset that is read in
        order, it is the number of elements of its inputs that this rank had read before the batch, including those that
        a step held open.
        """
        return self._progress.current().position

    # ------------------------------------------------------------------ state

    def state_dict(self, step: int | None = None) -> State:
        """Return the loader's state: a fresh JSON value of less than a kilobyte, for an indexable dataset.

        The state counts delivered batches only, not those that were computed ahead. For an indexable dataset all
        ranks' states are equal: save one; with `ordered=False`, save all. For a dataset that is read in order, save the
        states of all ranks. They have positions and no data, but of each element that a step holds open: `pack` and
        `bucket` may hold hundreds open, which take some tens of kilobytes.

        Args:
            step: returns the state after exactly this many delivered batches, for wrappers that look ahead.

        Raises:
            StateError: if the dataset can only be read in order, or batches are delivered out of order, and `step` is
                not one of the last steps.
        """
        point = self._progress.resume_point(None if step is None else need_count("step", step))
        shard = self._plan.shard
        own = self._fingerprint_at(point.epoch, point.seen)
        return LoaderState(
            own.parts(),
            own.steps,
            own.details,
            np.__version__,
            Shape(self._plan.batch_size, self._plan.remainder, shard.count),
            point.step,
            point.epoch,
            point.position,
            point.segments,
            point.cursor,
            point.rank_segments,
            shard.rank,
            point.ahead,
        ).to_json()

    def load_state_dict(self, state: State | str | Sequence[State | str], *, allow: Collection[str] = ()) -> None:
        """Resume from a state; the next `iter` yields the rest of that epoch.

        In order, that rest may be empty: after a state that was saved inside the loop after its last batch, or on a
        rank for which nothing is left. So all ranks begin the next epoch together.

        It takes constant time for an indexable dataset. In order, the elements that a step held open are computed
        again, and a stream without a state of its own is read from its beginning.

        The batch size and the number of ranks may differ from those of the state: batches are then recut from the
        state's position. If functions, the values that they hold, records that are Python objects or NumPy versions
        differ, the loader warns.

        Args:
            state: the value that `state_dict` returned, or its JSON text. For a dataset that is read in order, and
                another number of ranks, the list of all old ranks' states: the elements that they left unread are
                dealt to the new ranks, none is lost and none is repeated.
            allow: parts of the fingerprint that may differ: "source", "order".

        Raises:
            StateError: if the state is damaged, or of another dataset or version; it names the parts that differ.
            UsageError: if `allow` names a part that doesn't exist.
        """
        self._need_open()
        check_allowed(allow)
        listed = state if isinstance(state, list | tuple) else [state]
        if not listed:
            raise StateError("load_state_dict takes a state, or the list of all old ranks' states; got an empty list")
        parsed = [from_json(each) for each in listed]
        for each in parsed:
            compare(self._plan.node, self._fingerprint_at(each.epoch, each.seen), each, allow)
        with self._moves:
            self._progress.restore(parsed)
            self._retire_iterator("a state was loaded after this iterator was made; make a new one with iter(loader)")

    def seek(self, step: int | None = None, *, position: int | None = None, epoch: int | None = None) -> None:
        """Move to a step or a position, backwards or forwards, also past a failing batch; the next `iter` starts there.

        With `position`, the next batch begins with the first element that the dataset makes of this position or of a
        later one. From there on the elements are the same as without the call, and batches are recut, as after a change
        of the batch size. The next step keeps its number, and a state records the position at which it begins. This
        computes nothing, also if the dataset is read in order and the steps are not known. All ranks must make the same
        call at the same step.

        Args:
            step: the step that comes next.
            position: counts elements below the batch, over all ranks. In a dataset that is read in order it counts
                elements of the last step that can be indexed, such as the dataset below a filter. 0 is the beginning of
                an epoch, in any dataset; the length of an epoch is the beginning of the next one.
            epoch: the epoch of the position, below 2**31; by default `loader.epoch`.

        Raises:
            StateError: if the dataset can only be read in order and `step` is not one of the last steps.
            UsageError: if the epoch isn't below 2**31, or has no such position; or if the dataset is read in order and
                the position can be found only by reading: above a stream, joined parts, or a step whose results depend
                on the number of elements before, such as `pack`, `window_shuffle`, `limit` or an inner batch.
        """
        self._need_open()
        if (step is None) == (position is None):
            raise UsageError(f"seek takes a step, or position=; got step={step}, position={position}")
        with self._moves:
            if position is not None:
                at = self.epoch if epoch is None else need_count("epoch", epoch)
                self._progress.jump_to_position(at, need_count("position", position))
            elif epoch is not None:
                raise UsageError(f"epoch= is the epoch of position=; got step={step}, epoch={epoch}. Leave epoch= out")
            else:
                self._progress.jump(need_count("step", step))
            self._retire_iterator(MOVED)

    def batch_at(self, step: int) -> T_co:
        """Return the batch of a step, computed in this thread; the loader's state does not change.

        Raises:
            StateError: if the dataset can only be read in order and `step` is not one of the last steps; or if the step
                was cut for fewer ranks, and this rank has none of its rows.
        """
        step_range = self._progress.step_range(need_count("step", step))
        try:
            batch: T_co = self._runtime.batch_at(step_range)
        except Exception as error:
            trim(error)
            raise
        return batch

    def origin(self, step: int, row: int) -> Origin:
        """Return the record that a row of a step's batch comes from: its epoch, position and key; see `origins`.

        Args:
            step: the batch's number.
            row: the row in this rank's part of the batch.

        Raises:
            IndexError: if the batch has no such row.
        """
        return self._runtime.origin(self._progress.step_range(need_count("step", step)), need_count("row", row))

    def origins(self, step: int) -> tuple[Origin, ...]:
        """Return the record that each row of a step's batch comes from; the loader's state does not change.

        For an indexable dataset this is arithmetic: nothing is read or computed, whichever step it is. For a dataset
        that is read in order, the batch is computed again. A row in whose place `on_error=Substitute()` delivered
        another one has the origin of the record that failed; `look` names both, and `replaced` lists such rows.

        Args:
            step: the batch's number.

        Returns:
            An origin for each row in this rank's part of the batch, without the padding of `remainder="pad"`. A dataset
            without a batch has one row.

        Raises:
            StateError: if the dataset can only be read in order and `step` is not one of the last steps.

        Example:
            >>> import penstock as ps
            >>> loader = ps.Loader(ps.range(8, seed=7).shuffle().batch(4))
            >>> [origin.key for origin in loader.origins(3)] == loader.batch_at(3).tolist()
            True
            >>> {(origin.epoch, origin.record.split()[0]) for origin in loader.origins(3)}
            {(1, 'key')}
        """
        return self._runtime.origins(self._progress.step_range(need_count("step", step)))

    # ------------------------------------------------------------------ looking

    def look(self, step: int, *, row: int | None = None, decode: Callable[[list[int]], object] | None = None) -> "Look":
        """Return what the model sees at a step, to print or to show: its rows, with the record of each.

        The batch is computed in this thread, as by `batch_at`, so it may be of any step, of the past or the future. The
        loader's state does not change. A row whose record failed says which element was delivered in its place.

        Args:
            step: the batch's number.
            row: a row, which is shown alone, after each step of the dataset that makes it; None for all rows.
            decode: makes text of integers: called with the list of those of each one-dimensional array of a row.

        Returns:
            The batch as NumPy arrays, also from loaders that place batches on devices. A notebook shows its pictures,
            texts, masks and numbers; `html` writes them as a page.

        Raises:
            StateError: as `batch_at` does.
            IndexError: the batch has no such row.
            UsageError: the dataset is read in order, and a row is given.

        Example:
            >>> import penstock as ps
            >>> loader = ps.Loader(ps.range(8).map(lambda number: {"n": number, "half": number / 2}).batch(2))
            >>> print(loader.look(5))
            step 5, epoch 1: 2 rows
            <BLANKLINE>
            row 0, key 2, epoch 1, position 2
              ['n']     2
              ['half']  1.0
            row 1, key 3, epoch 1, position 3
              ['n']     3
              ['half']  1.5
        """
        step = need_count("step", step)
        step_range = self._progress.step_range(step)
        try:
            batch, origins, stages = self._runtime.looked_at(
                step_range, None if row is None else need_count("row", row)
            )
        except Exception as error:
            trim(error)
            raise
        is_batched = stages is None and (self._plan.batch_size > 1 or len(origins) > 1 or _has_batch(self._plan))
        return observe.Look(step, batch, origins, is_batched=is_batched, decode=decode, stages=stages)

    def stats(self) -> dict[str, float]:
        """Return counters for any logger, as a flat dict of floats.

        `batches`, delivered so far; `wait_seconds`, the time that the consumer waited, and `wait_share`, its share of
        the time since the first request; `batches_per_second`; `bytes_in_flight`, the memory of batches that are being
        made, ready or in use; `worker_restarts`, the number of worker processes that died; `substituted` and `skipped`,
        the numbers of these elements; `filtered`, the number of elements that predicates left out.
        """
        recorder = self._runtime.recorder
        return {
            **self._clock.stats(),
            "bytes_in_flight": float(self._runtime.bytes_in_flight()),
            "worker_restarts": float(recorder.total(WorkerDied)),
            "substituted": float(recorder.total(Substituted)),
            "skipped": float(recorder.total(Skipped)),
            "filtered": float(recorder.filtered),
        }

    def report(self) -> Report:
        """Return where the time of a batch goes, what the training waits for, and what would help; `print` it.

        It may be called at any time and in any thread; nothing has to be switched on before. The helper process of
        `isolated=True` and its workers write the times of their steps where this process reads them; the processes of a
        pool send theirs with the batches.

        Example:
            >>> import penstock as ps
            >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
            >>> batches = list(loader)
            >>> report = loader.report()
            >>> report.batches, [step.name for step in report.steps]
            (8, ['read', 'add', 'batch'])
        """
        return report_of(self._plan, self._runtime.readings, self._clock)

    def trace(self, path: str | Path) -> None:
        """Write what the threads and processes did in the last seconds, as a file for trace viewers.

        A loader always keeps the last 4,096 intervals of each worker, and of its own waits, without those below 50
        microseconds. So nothing has to be switched on before: call this after a slow moment, in any thread. Open the
        file in Perfetto (ui.perfetto.dev), or in Chrome at chrome://tracing. Each worker has a track of the steps that
        it ran, block by block, and the training one of its waits, with their causes. Each process of a pool has one of
        the steps that it has computed, under the name of its host.

        Args:
            path: of the file, which holds JSON; an existing one is replaced. It is compressed if it ends in ".gz".

        Raises:
            OSError: the file can't be written.

        Example:
            >>> import penstock as ps
            >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
            >>> batches = list(loader)
            >>> loader.trace("trace.json.gz")
        """
        observe.write_trace(self._plan, self._runtime.readings, path)

    def watch(self, interval: float = 60.0) -> "Watch":
        """Show what the loader does while the block of a `with` statement runs, as lines on stderr.

        On a terminal it is one line, which is redrawn each second; elsewhere there is a line at each interval. It has
        the progress, the rate, the share of the time in which the training waits and why, and how busy the workers are,
        in the last seconds or since the last line. `penstock watch` shows the same for any program that runs.

        Args:
            interval: the seconds from one line to the next, where there is no terminal; above 0.

        Returns:
            An object for the `with` statement.

        Raises:
            UsageError: `interval` isn't above 0.

        Example:
            >>> import penstock as ps
            >>> with ps.Loader(ps.range(64).batch(8)) as loader, loader.watch():
            ...     batches = list(loader)
        """
        return observe.Watch(self._publisher.seen, interval)

    def verify(self, seconds: float = 2.0) -> tuple[WhatIf, ...]:
        """Measure what `report().what_if` predicts, in throwaway loaders.

        For each of the three best predictions, a loader with the same workers and limits delivers the dataset with that
        change: a step that costs nothing returns results from memory, there is one worker more, processes are in place
        of threads, `memory` has no limit, or eight times as many batches are computed ahead. It takes turns with
        another one, which delivers the dataset as it is. After each batch comes a wait, as long as the training has
        taken for a batch.

        This loader and its state don't change. Its workers share the processors with the throwaway ones, and the
        dataset's functions are called for further elements; so call this between two epochs. It takes up to nine times
        `seconds`, and longer if a few batches, or the wait for the first batch of an epoch, take as long.

        Args:
            seconds: the time of each measurement, above 0.

        Returns:
            The predictions of the report, the best first, with `WhatIf.measured`. That is None for changes that gain
            less than 5 %, for those after the third, for steps below a cache, for steps other than reads and functions,
            which can't be replayed, for the placing of batches, and for processes to which the dataset can't be sent.

        Raises:
            UsageError: `seconds` isn't above 0; no batch was delivered yet, so that nothing is predicted; or a pool
                computes the batches, which may have no room for throwaway loaders.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.range(64).map(lambda number: sum(range(20_000)), name="decode").batch(8)
            >>> with ps.Loader(dataset) as loader:
            ...     batches = list(loader)
            ...     predictions = loader.verify(seconds=0.05)
            >>> any(each.step == "decode" and each.measured for each in predictions)
            True
        """
        self._need_open()
        if self._plan.remote:
            raise UsageError(
                f"verify measures with workers of this host, and this loader has {self._plan.remote}. Call it on a "
                "loader of the same dataset with num_workers=n; report() has the predictions for this one"
            )
        timed = timed_steps(self._plan, self._runtime.readings, 0)
        steps = {name: step.node for name, step in timed.items() if step.node is not None}
        return tuple(verified(self._throwaway, self._plan.node, self.report(), steps, self._plan.prefetch, seconds))

    def _throwaway(self, node: Node, changes: Mapping[str, Any]) -> "Loader[Any]":
        """Return a loader of another dataset, at the beginning of its second epoch, which logs nothing of the training.

        Args:
            node: the dataset.
            changes: the arguments that differ from those of this loader.
        """
        plan = self._plan
        arguments: dict[str, Any] = {
            "num_workers": plan.num_workers,
            "workers": "auto" if plan.place == "inline" else plan.place,
            "isolated": plan.isolated,
            "ordered": plan.ordered,
            "shard": plan.shard,
            "prefetch": plan.prefetch,
            "memory": plan.memory,
            "copy": plan.copy,
            **changes,
        }
        if arguments["num_workers"] or plan.place == "inline":  # some limits need workers
            arguments["limits"] = plan.limits
        loader: Loader[Any] = Loader(Dataset(node), **arguments)
        loader._runtime.recorder.silence()
        loader._clock.hints = None
        if not is_endless(node):
            loader.seek(position=0, epoch=1)  # a loader that begins with epoch 0 again would be taken for a mistake
        return loader

    def _repr_html_(self) -> str:
        return self.report().html()

    def replaced(self) -> tuple[Replaced, ...]:
        """Return the latest elements, at most 1,000, that were substituted or skipped, and why."""
        return self._runtime.recorder.replaced()

    def deaths(self) -> tuple[WorkerDied, ...]:
        """Return the latest deaths of worker processes, at most 1,000: the worker, the reason, and its last block."""
        return self._runtime.recorder.deaths()

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Stop the workers. Delivered batches stay valid; iterating, seeking and restoring raise a ClosedError."""
        self._is_closing = True
        self._retire_iterator(_CLOSED)
        self._closer()
        self._publisher.close()
        self._retire_iterator(_CLOSED)  # another thread may have made one meanwhile

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a loader owns workers, so it can't be copied or pickled. Send its dataset and loader.state_dict(), make a "
            "loader of that dataset there, and call its load_state_dict(state)"
        )

    def __repr__(self) -> str:
        plan = self._plan
        workers = f"{plan.workers_text} ({plan.why})" if plan.why else plan.workers_text
        rank = f"rank {plan.shard.rank} of {plan.shard.count}"
        return f"Loader({self._dataset!r}\n  {printable(workers)}, {rank}, {self.steps_done} steps done)"

    if not TYPE_CHECKING:  # with this method type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Refuse an attribute; the message of a name that other libraries have says what to use.

            Raises:
                AttributeError: always.
            """
            raise_noted(self, name)
            raise AttributeError(loader_text(name), name=name, obj=None if name in LOADER_NAMES else self)

    def _need_open(self) -> None:
        if not self._closer.is_open:
            raise ClosedError(PROGRAM_ENDS if self._closer.ends_with_program else f"{_CLOSED}; make a new one")
        if self._workers.closer is not self._closer:  # another thread may close this loader after it was found open
            self._workers.need_open()

    def _shared(self) -> SharedWorkers:
        """Return the workers that compute for this loader, to be used by another one."""
        self._need_open()
        return self._workers

    def _retire_iterator(self, why: str) -> None:
        if self._iterator is not None and (iterator := self._iterator()) is not None:
            iterator.retire(why)

    def _fingerprint_at(self, epoch: int, position: int) -> Fingerprint:
        """Return the fingerprint of the elements before a position of an epoch."""
        node = self._plan.node
        past = seen_past(node, epoch, position)
        known = self._fingerprints.get(past)
        if known is None:
            known = fingerprint(node) if past is None else fingerprint(node, epoch, position)
            self._fingerprints[past] = known
        return known


explain_methods(Loader, __init__="Loader")


def _runtime_of(plan: Plan, owner: SharedWorkers | None, pool: RemoteWorkers | None) -> Runtime:
    if pool is not None:
        return pool.open_runtime(plan)
    if plan.isolated:
        return _runtime.IsolatedRuntime(plan)
    return Runtime(plan, owner=None if owner is None else owner.runtime)


def _has_batch(plan: Plan) -> bool:
    """Return whether the leaves of what the dataset yields have a leading axis of rows, as far as that is known."""
    return plan.is_indexed and plan.batches.batch is not None


def _need_kind(workers: object) -> None:
    if isinstance(workers, int):
        raise UsageError(
            f"workers is the kind of workers; got workers={workers}. Their number is num_workers={workers}."
        )


def _need_dataset(dataset: object) -> None:
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"dataset must be a penstock Dataset; got {dataset!r:.200}. Make one with ps.read(source), or with "
            "ps.stream(lambda: …) of a generator."
        )

"""Rounds, in each of which a dataset is read for some epochs, in several places, while faults are injected.

The seed and the number decide a round, except for timing: a worker's block at the moment of a kill varies.
"""

import gc
import json
import select
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.errors import GraphError, WorkerError
from tests.equivalence.decisions import random_decisions
from tests.equivalence.kinds import is_numpy
from tests.faults import program
from tests.faults.chance import Chance
from tests.faults.datasets import (
    CRASHING_TRAPS,
    INJECTED,
    MAX_ROWS,
    TRAPPED_KINDS,
    TRAPS_ANYWHERE,
    TRAPS_OF_PROCESSES,
    InjectedError,
    Traps,
    dataset_of,
)
from tests.faults.family import Family, Process
from tests.faults.findings import (
    BATCHES,
    POISONED,
    RAISED,
    Findings,
    brief,
    briefs,
    compare,
    ended_by,
    first_difference,
    is_raised,
)
from tests.faults.pace import at_once
from tests.faults.places import (
    ABANDON,
    FAULTS,
    KILL,
    KILL_HELPER,
    KILL_PROGRAM,
    KILL_SERVER,
    RESTART,
    STOP,
    STOP_AND_KILL,
    WHOLE,
    Place,
    place_for,
)
from tests.faults.subjects import DatasetSubject, Subject
from tests.faults.work import TORCH_KIND, WORKING_KINDS
from tests.leaks import held, left_behind
from tests.trees import leaves_of

FAULTS_PER_ROUND: Final = 24
_MAX_EPOCHS: Final = 30
_MAX_CRASHES: Final = 2  # in most epochs: a third crash in the same block is an error
_MANY_CRASHES: Final = 8  # in some epochs, where such an error can be distinguished
_MAX_ERRORS: Final = 100  # for one batch
_PROGRAM_EVERY: Final = 4 * len(FAULTS)  # rounds: each kill of a program costs the start of two
_FAULTS_OF_WORK: Final = (KILL, KILL_HELPER, STOP, STOP_AND_KILL, RESTART, ABANDON)
_FAULTS_PER_WORK: Final = 8
_MAX_EPOCHS_OF_WORK: Final = 4
_SECONDS_OF_WORK: Final = 12.0  # after which no further epoch begins
_SLOW_SECONDS: Final = (0.001, 0.005, 0.03)
_STOPPED_SECONDS: Final = 0.02  # at most, where nothing comes from the others
_PATIENCE_SECONDS: Final = 10.0


def is_empty_epoch(error: Exception) -> bool:
    """Return whether a loader refuses an epoch that `on_error="skip"` left without a batch."""
    return isinstance(error, GraphError) and "gave no batch" in str(error)


def run_round(
    seed: int,
    number: int,
    findings: Findings,
    progress: Callable[[], None],
    faults: int = FAULTS_PER_ROUND,
    kinds: Sequence[str] = TRAPPED_KINDS,
) -> None:
    """Read a dataset of one of some kinds while about so many faults are injected, and collect the findings."""
    chance = Chance(seed, number)
    favoured = FAULTS[number % len(FAULTS)]
    kind = chance.one_of(kinds)
    is_working = kind in WORKING_KINDS
    if favoured == KILL_PROGRAM and number % _PROGRAM_EVERY != FAULTS.index(KILL_PROGRAM):
        favoured = KILL
    if is_working and favoured in (*TRAPS_ANYWHERE, *TRAPS_OF_PROCESSES):
        favoured = chance.one_of(_FAULTS_OF_WORK)
    if kind == TORCH_KIND and favoured in (KILL_HELPER, KILL_PROGRAM):
        favoured = KILL
    before = held()
    mapped = _mapped_memory()
    family = Family()
    decisions = chance.between(1, 1 << 31) if chance.is_one_in(2) else None
    name = f"seed {seed}, round {number} ({kind}, {favoured}{'' if decisions is None else ', random decisions'})"
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about batches that slow consumers keep
        subject = _subject(kind, Path(folder), Chance(seed, number, "dataset"))
        try:
            with random_decisions(decisions):
                if favoured == KILL_PROGRAM and not _raises(subject):
                    program.run_killed(subject, (kind, folder, seed, number), chance, findings)
                else:
                    favoured = KILL if favoured == KILL_PROGRAM else favoured
                    journey = _Journey(subject, name, kind, favoured, chance, findings)
                    journey.run(Path(folder), family, min(faults, _FAULTS_PER_WORK) if is_working else faults, progress)
                    del journey
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - it is a finding, be it an injected SystemExit where none is expected
            findings.bad.append(f"{name}: {traceback.format_exc()}")
        del subject
    findings.rounds += 1
    left = [*family.left_over(), *left_behind(before, _PATIENCE_SECONDS)]
    if _mapped_memory() > mapped:
        left.append(f"{_mapped_memory() - mapped} mappings of shared memory")
    findings.bad.extend(f"{name} left behind: {what}" for what in left)
    progress()


def _subject(kind: str, folder: Path, chance: Chance) -> Subject:
    if kind == TORCH_KIND:
        from tests.faults.torch_work import TorchSubject  # noqa: PLC0415 - importing torch takes seconds

        return TorchSubject(chance)
    return DatasetSubject(dataset_of(kind, folder, chance))


def _raises(subject: Subject) -> bool:
    with at_once():
        outcomes = briefs(subject.epoch(0, WHOLE))
    return is_raised(outcomes)


def _mapped_memory() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/memfd:")


@dataclass(frozen=True)
class _Consumer:
    """The consumer waits after one of so many batches, on average (0: never), and keeps some batches."""

    waits_one_in: int = 0
    seconds: float = 0.0
    keeps: int = 1


class _Journey:
    """One dataset on its way through epochs and places."""

    def __init__(
        self, subject: Subject, name: str, kind: str, favoured: str, chance: Chance, findings: Findings
    ) -> None:
        self._subject = subject
        self._name = name
        self._kind = kind
        self._is_working = kind in WORKING_KINDS
        self._favoured = favoured
        self._chance = chance
        self._findings = findings
        self._epoch = 0
        self._expected: list[Any] = []
        self._found: list[Any] = []
        self._largest = 0  # bytes of a batch
        self._kept: deque[tuple[Any, Any]] = deque()  # batches that the consumer keeps, with their briefs
        self._consumer = _Consumer()
        if self._is_working:
            self._consumer = _Consumer(chance.one_of([0, 0, 1, 4]), chance.one_of(_SLOW_SECONDS), chance.between(0, 4))
        self._loader: Any = None
        self._in_order = True  # whether all loaders of this epoch are ordered
        self._crashes = 0  # the most in one block since the loader was made or the epoch began, with pending traps
        self._most_crashes = _MAX_CRASHES
        self._has_killed_server = False

    def run(self, folder: Path, family: Family, faults: int, progress: Callable[[], None]) -> None:
        """Read until so many faults were injected, the favoured kind among them."""
        self._traps = Traps(folder)
        self._family = family
        self._progress = progress
        wanted, favoured = self._findings.injected + faults, self._findings.total(self._favoured)
        began = time.monotonic()
        self._draw_place(may_change_ranks=True)
        self._expect(0)
        self._open()
        try:
            for epoch in range(_MAX_EPOCHS_OF_WORK if self._is_working else _MAX_EPOCHS):
                if epoch:
                    self._expect(epoch)
                self._read_epoch()
                if is_raised(self._expected):  # the number of delivered batches decides whether another epoch begins
                    break
                if self._findings.injected >= wanted and self._findings.total(self._favoured) > favoured:
                    break
                if self._is_working and time.monotonic() - began > _SECONDS_OF_WORK:
                    break
        finally:
            self._kept.clear()
            vars(self).pop("_batches", None)  # missing where a restart failed
            self._close()

    # -- places

    def _draw_place(self, *, may_change_ranks: bool) -> None:
        shard = getattr(self, "_place", Place("none")).shard
        # Out of order, batches after an error may come before it.
        needs_order = is_raised(self._expected)
        while True:
            place = replace(place_for(self._favoured, self._chance), shard=shard)
            has_state = self._subject.has_state(place) or not self._found
            if self._subject.accepts(place) and has_state and (place.ordered or not needs_order):
                break
        if self._is_working:
            place = place.varied(self._chance, self._largest)
            if may_change_ranks and self._in_order and self._chance.is_one_in(2):
                count = self._chance.between(1, 4)
                other = replace(place, shard=(self._chance.between(0, count - 1), count))
                place = other if self._subject.accepts(other) else place
        self._place = place

    def _open(self) -> None:
        self._loader = self._subject.open(self._place)

    @property
    def _is_ours(self) -> bool:
        return isinstance(self._subject, DatasetSubject)

    def _close(self) -> None:
        if self._is_ours and self._loader is not None:  # torch's is closed when its last reference is dropped
            self._loader.close()

    # -- batches

    def _expect(self, epoch: int) -> None:
        """Compute the right batches of an epoch."""
        self._epoch = epoch
        self._found = []
        with at_once():
            self._expected = briefs(self._sized(self._subject.epoch(epoch, self._place.shard)))

    def _sized(self, batches: Iterable[Any]) -> Iterator[Any]:
        for each in batches:
            batch = self._subject.plain(each)
            leaves = leaves_of(batch)
            self._largest = max(self._largest, sum(leaf.nbytes for leaf in leaves if is_numpy(leaf)))
            yield batch

    def _read_epoch(self) -> None:
        self._kept.clear()
        self._in_order = True
        self._crashes = 0
        # A substituted dataset replaces a crashing row as it replaces one that raises.
        crash_is_an_error = not self._is_working and self._kind != "substituted"
        self._most_crashes = _MANY_CRASHES if crash_is_an_error and self._chance.is_one_in(4) else _MAX_CRASHES
        if is_raised(self._expected) and not self._place.ordered:
            self._restart()
        count = len(self._expected)
        moments = {self._chance.between(0, count) for _ in range(self._chance.between(1, 6))}
        began = time.monotonic()
        for _ in range(self._chance.between(0, 3)):
            self._lay_trap()
        self._begin()
        while not self._is_at_end:
            if len(self._found) in moments:
                moments.discard(len(self._found))
                self._inject()
            if not self._is_at_end:  # a fault may have read to the end
                self._take()
        self._count_sprung(remove=True)
        self._findings.took(self._kind, self._place.name, time.monotonic() - began)
        self._compare(len(self._expected))
        self._progress()

    def _compare(self, count: int) -> None:
        """Compare the found batches with the first `count` expected ones."""
        expected = self._expected[:count]
        wrong = compare(expected, self._found, in_order=self._in_order)
        for what, how_many in wrong.items():
            self._count(what, how_many)
            self._findings.bad.append(
                f"{self._name}: epoch {self._epoch}, ended in {self._place}: "
                f"{how_many} {what}; {first_difference(expected, self._found)}"
            )

    def _begin(self) -> None:
        self._is_at_end = False
        self._batches = iter(self._loader)
        self._in_order = self._in_order and self._place.ordered

    def _take(self, *, is_error_enough: bool = False) -> None:
        """Take the next batch or an injected error, and note the end of the epoch."""
        for _ in range(_MAX_ERRORS):
            try:
                batch = next(self._batches)
            except StopIteration:
                self._is_at_end = True
                return
            except (InjectedError, MemoryError, SystemExit, WorkerError) as error:
                self._accept(error)
                if is_error_enough:
                    return
            except ValueError as error:
                if not is_empty_epoch(error) or self._found or self._expected:  # the definition raises it as well
                    self._found.append(ended_by(error))
                self._is_at_end = True
                return
            else:
                self._consume(batch)
                return
        raise AssertionError("errors without end")

    def _consume(self, given: Any) -> None:
        batch = self._subject.plain(given)
        self._found.append(brief(batch))
        self._kept.append((batch, self._found[-1]))
        self._count(BATCHES)
        if (
            self._is_ours
            and self._place.memory is not None
            and self._loader.stats()["bytes_in_flight"] > self._place.memory
        ):
            raise AssertionError(f"{self._loader.stats()['bytes_in_flight']} bytes are in flight in {self._place}")
        if self._consumer.waits_one_in and self._chance.is_one_in(self._consumer.waits_one_in):
            threading.Event().wait(self._consumer.seconds)
        while len(self._kept) > self._consumer.keeps:
            kept, before = self._kept.popleft()
            if brief(kept) != before:
                raise AssertionError("a batch changed after it was delivered")

    def _accept(self, error: BaseException) -> None:
        """Count an injected error; raise any other."""
        if INJECTED in str(error):
            self._count(RAISED)
            return
        self._count_sprung()
        if not isinstance(error, WorkerError) or self._crashes <= _MAX_CRASHES:
            raise error
        self._count(POISONED)
        self._restart()

    # -- faults

    def _inject(self) -> None:
        faults = self._place.faults()
        fault = self._favoured if self._chance.is_one_in(2) else self._chance.one_of(faults)
        if fault not in faults:  # the round has moved to another place
            return
        if fault in (*TRAPS_ANYWHERE, *TRAPS_OF_PROCESSES):
            self._lay_trap()
        elif fault in (RESTART, ABANDON):
            if self._is_amid and self._subject.has_state(self._place):
                self._restart() if fault == RESTART else self._abandon()
                self._count(fault)
        elif fault == KILL_SERVER:
            if not self._has_killed_server and self._crashes < self._most_crashes:  # making another takes long
                self._has_killed_server = self._strike(self._family.servers(), signal.SIGKILL, KILL_SERVER)
                self._crashes += self._has_killed_server  # a helper that it was about to fork counts as crashed
        else:
            self._strike_worker(fault)

    def _strike_worker(self, fault: str) -> None:
        has_both = self._place.isolated and self._place.has_worker_processes
        depth = int(has_both and fault != KILL_HELPER and (fault == KILL or self._chance.is_one_in(2)))
        workers = self._family.workers(depth)
        if fault == STOP:
            self._stop(workers, None)
        elif self._crashes < self._most_crashes:
            if fault == STOP_AND_KILL:
                self._stop(workers, signal.SIGKILL)
            else:  # in a burst, a block may lose every worker that tries it
                for _ in range(1 if self._most_crashes == _MAX_CRASHES else self._chance.between(1, 4)):
                    self._crashes += self._strike(self._family.workers(depth), signal.SIGKILL, fault)

    def _strike(self, targets: list[Process], number: signal.Signals, fault: str) -> bool:
        struck = bool(targets) and self._chance.one_of(targets).signal(number)
        self._count(fault, int(struck))
        return struck

    def _stop(self, workers: list[Process], then: signal.Signals | None) -> None:
        """Stop a worker, take batches of the others, and continue or kill it."""
        if not workers:
            return
        worker = self._chance.one_of(workers)
        if not worker.signal(signal.SIGSTOP):
            return
        try:
            for _ in range(self._chance.between(1, 4)):
                # The loader computes a batch again after an error, and may need the stopped worker for it.
                if self._is_at_end or not self._is_ready():
                    break
                self._take(is_error_enough=True)
        finally:
            if then is None:
                worker.signal(signal.SIGCONT)
            else:
                self._crashes += worker.signal(then)
        self._count(STOP if then is None else STOP_AND_KILL)

    def _is_ready(self) -> bool:
        if not self._is_ours:  # torch's loader can't be asked
            return False
        descriptor = self._batches.may_wait
        if descriptor is None:
            return True
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(1000 * _STOPPED_SECONDS)) and self._batches.may_wait is None

    @property
    def _is_amid(self) -> bool:
        """Whether a state taken now is one of this epoch."""
        return len(self._found) < len(self._expected)

    def _restart(self) -> None:
        """Abandon the loader, and resume from its state in another place."""
        state = json.dumps(self._loader.state_dict())
        self._count_sprung()
        if self._chance.is_one_in(2):
            self._close()
        if hasattr(self, "_batches"):
            del self._batches
        self._loader = None  # the dropped reference closes it
        before = self._place.shard
        may_change_ranks = self._subject.can_change_ranks
        self._draw_place(may_change_ranks=may_change_ranks)
        while not self._subject.has_state(self._place):  # torch's loader without an order refuses a state
            self._draw_place(may_change_ranks=may_change_ranks)
        if self._place.shard != before:
            self._resume_as_another_rank()
        self._open()
        self._crashes = self._traps.waiting(CRASHING_TRAPS)
        self._loader.load_state_dict(json.loads(state))
        self._begin()

    def _resume_as_another_rank(self) -> None:
        count = len(self._found)
        self._compare(count)
        self._expect(self._epoch)
        self._found = self._expected[:count]  # they were compared

    def _abandon(self) -> None:
        """Abandon the iterator, maybe read some of another epoch, and load the state in the same loader."""
        state = self._loader.state_dict()
        if self._chance.is_one_in(2):
            del self._batches
        if self._chance.is_one_in(2):
            self._batches = iter(self._loader)
            with suppress(StopIteration, ValueError, InjectedError, MemoryError, SystemExit, WorkerError):
                for _ in range(self._chance.between(0, 3)):
                    next(self._batches)
        self._loader.load_state_dict(state)
        self._begin()

    def _lay_trap(self) -> None:
        if self._is_working:  # its functions look for no traps
            return
        kinds = [kind for kind in self._place.faults() if kind in (*TRAPS_ANYWHERE, *TRAPS_OF_PROCESSES)]
        kind = self._favoured if self._favoured in kinds and self._chance.is_one_in(2) else self._chance.one_of(kinds)
        if kind in CRASHING_TRAPS:
            if self._crashes >= self._most_crashes:
                return
            self._crashes += 1
        self._traps.lay(self._chance.between(0, MAX_ROWS), kind)

    # -- counting

    def _count_sprung(self, *, remove: bool = False) -> None:
        for kind, how_many in self._traps.sprung(remove=remove).items():
            self._count(kind, how_many)

    def _count(self, what: str, how_many: int = 1) -> None:
        if how_many:
            self._findings.counts[self._kind, self._place.name, what] += how_many

"""Rounds: in each a dataset is read for some epochs, in one place after the other, while faults are injected.

A round is decided by the seed and its number, but for moments: which worker is at what when it is killed is not.
"""

import gc
import json
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import penstock as ps
from penstock._caught import Caught
from penstock.errors import WorkerError
from tests.equivalence.definition import digest, epoch_of
from tests.faults import program
from tests.faults.chance import Chance
from tests.faults.datasets import (
    DEADLY_TRAPS,
    INJECTED,
    KINDS,
    MOST_ROWS,
    TRAPS_ANYWHERE,
    TRAPS_OF_PROCESSES,
    InjectedError,
    Traps,
    dataset_of,
)
from tests.faults.family import Family, Process
from tests.faults.findings import BATCHES, POISONED, RAISED, Findings, compare
from tests.faults.places import (
    FAULTS,
    KILL,
    KILL_HELPER,
    KILL_PROGRAM,
    KILL_SERVER,
    RESTART,
    STOP,
    STOP_AND_KILL,
    place_for,
)
from tests.leaks import held, left_behind

FAULTS_PER_ROUND: Final = 24
_MOST_EPOCHS: Final = 30
_MOST_DEATHS: Final = 2  # in an epoch, as a rule: a third of the same block makes an error of it
_MANY_DEATHS: Final = 8  # now and then, where such an error is told from the others
_MOST_ERRORS: Final = 100  # for one batch
_PROGRAM_EVERY: Final = 4 * len(FAULTS)  # rounds: each kill of a program costs the start of two
_STOPPED_SECONDS: Final = 0.02  # at most, where nothing comes from the others
_PATIENCE_SECONDS: Final = 10.0


def run_round(
    seed: int, number: int, findings: Findings, progress: Callable[[], None], faults: int = FAULTS_PER_ROUND
) -> None:
    """Read a dataset while faults are injected, and note what was found.

    Args:
        seed: of the run.
        number: of the round.
        findings: are added to.
        progress: called often.
        faults: how many to inject, about.
    """
    chance = Chance(seed, number)
    favoured = FAULTS[number % len(FAULTS)]
    if favoured == KILL_PROGRAM and number % _PROGRAM_EVERY != FAULTS.index(KILL_PROGRAM):
        favoured = KILL
    kind = chance.one_of(KINDS)
    before = held()
    mapped = _mapped_memory()
    family = Family()
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder:
        dataset = dataset_of(kind, Path(folder), Chance(seed, number, "dataset"))
        with Caught() as caught:
            if favoured == KILL_PROGRAM:
                program.run_killed(dataset, (kind, folder, seed, number), chance, findings)
            else:
                _Journey(dataset, kind, favoured, chance, findings).run(Path(folder), family, faults, progress)
        if caught.error is not None:
            if not isinstance(caught.error, Exception):
                raise caught.error
            raised = "".join(traceback.format_exception(caught.error))
            findings.bad.append(f"round {number} ({kind}, {favoured}): {raised}")
        del dataset, caught
    findings.rounds += 1
    left = [*family.left_over(), *left_behind(before, _PATIENCE_SECONDS)]
    if _mapped_memory() > mapped:
        left.append(f"{_mapped_memory() - mapped} mappings of shared memory")
    findings.bad.extend(f"round {number} ({kind}, {favoured}) left behind: {what}" for what in left)
    progress()


def _mapped_memory() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/memfd:")


class _Journey:
    """One dataset on its way through epochs and places."""

    def __init__(self, dataset: ps.Dataset[Any], kind: str, favoured: str, chance: Chance, findings: Findings) -> None:
        self._dataset = dataset
        self._kind = kind
        self._favoured = favoured
        self._chance = chance
        self._findings = findings
        self._expected: list[Any] = []
        self._found: list[Any] = []
        self._last: tuple[Any, Any] | None = None  # the batch handed out before a fault, and its digest
        self._in_order = True  # whether all loaders of this epoch were
        self._deaths = 0  # of one block, at most, since the loader was made or the epoch began; with those to come
        self._most_deaths = _MOST_DEATHS
        self._has_killed_server = False

    def run(self, folder: Path, family: Family, faults: int, progress: Callable[[], None]) -> None:
        """Go on until so many faults were injected, the favoured kind among them."""
        self._traps = Traps(folder)
        self._family = family
        self._progress = progress
        wanted, favoured = self._findings.injected + faults, self._findings.total(self._favoured)
        self._move()
        try:
            for epoch in range(_MOST_EPOCHS):
                self._read_epoch(epoch)
                if self._findings.injected >= wanted and self._findings.total(self._favoured) > favoured:
                    break
        finally:
            self._last = None
            del self._batches
            self._loader.close()

    def _move(self) -> None:
        self._place = place_for(self._favoured, self._chance)
        self._loader = self._place.open(self._dataset, self._chance.between(1, 4))

    def _read_epoch(self, epoch: int) -> None:
        self._expected = [digest(batch) for batch in epoch_of(self._dataset, epoch)]
        self._found, self._last = [], None
        self._in_order = True
        self._deaths = 0
        poison_is_told = self._kind != "substituted"  # where a deadly row is replaced like one that raises
        self._most_deaths = _MANY_DEATHS if poison_is_told and self._chance.is_one_in(4) else _MOST_DEATHS
        count = len(self._expected)
        moments = {self._chance.between(0, count) for _ in range(self._chance.between(1, 6))}
        began = time.monotonic()
        for _ in range(self._chance.between(0, 3)):
            self._lay_trap()
        self._begin()
        goes_on = True
        while goes_on:
            if len(self._found) in moments:
                moments.discard(len(self._found))
                self._inject()
            goes_on = self._take()
        self._count_sprung(remove=True)
        self._findings.took(self._kind, self._place.name, time.monotonic() - began)
        wrong = compare(self._expected, self._found, in_order=self._in_order)
        for what, how_many in wrong.items():
            self._count(what, how_many)
            self._findings.bad.append(f"epoch {epoch} of {self._kind}, ended in {self._place}: {how_many} {what}")
        self._progress()

    def _begin(self) -> None:
        self._batches = iter(self._loader)
        self._in_order = self._in_order and self._place.ordered

    def _take(self, *, is_error_enough: bool = False) -> bool:
        """Take the next batch, or an error that was injected; return whether there was one."""
        for _ in range(_MOST_ERRORS):
            try:
                batch = next(self._batches)
            except StopIteration:
                return False
            except (InjectedError, MemoryError, WorkerError) as error:
                self._accept(error)
                if is_error_enough:
                    return True
            else:
                if self._last is not None and digest(self._last[0]) != self._last[1]:
                    raise AssertionError("a batch changed after it was handed out")
                self._found.append(digest(batch))
                self._last = batch, self._found[-1]
                self._count(BATCHES)
                return True
        raise AssertionError("errors without end")

    def _accept(self, error: Exception) -> None:
        """Go on after an error that was injected; raise any other."""
        if INJECTED in str(error):
            self._count(RAISED)
            return
        self._count_sprung()
        if not isinstance(error, WorkerError) or self._deaths <= _MOST_DEATHS:
            raise error
        self._count(POISONED)
        self._restart()

    # -- faults

    def _inject(self) -> None:
        faults = self._place.faults()
        fault = self._favoured if self._chance.is_one_in(2) else self._chance.one_of(faults)
        if fault not in faults:  # after going on elsewhere
            return
        if fault in (*TRAPS_ANYWHERE, *TRAPS_OF_PROCESSES):
            self._lay_trap()
        elif fault == RESTART:
            if len(self._found) < len(self._expected):
                self._restart()
                self._count(RESTART)
        elif fault == KILL_SERVER:
            if not self._has_killed_server and self._deaths < self._most_deaths:  # making another takes long
                self._has_killed_server = self._strike(self._family.servers(), signal.SIGKILL, KILL_SERVER)
                self._deaths += self._has_killed_server  # a helper that it was about to fork counts as one that died
        else:
            self._strike_worker(fault)

    def _strike_worker(self, fault: str) -> None:
        has_both = self._place.isolated and self._place.has_worker_processes
        depth = int(has_both and fault != KILL_HELPER and (fault == KILL or self._chance.is_one_in(2)))
        workers = self._family.workers(depth)
        if fault == STOP:
            self._stop(workers, None)
        elif self._deaths < self._most_deaths:
            if fault == STOP_AND_KILL:
                self._stop(workers, signal.SIGKILL)
            else:  # in a burst, a block may well lose all that try it
                for _ in range(1 if self._most_deaths == _MOST_DEATHS else self._chance.between(1, 4)):
                    self._deaths += self._strike(self._family.workers(depth), signal.SIGKILL, fault)

    def _strike(self, targets: list[Process], number: signal.Signals, fault: str) -> bool:
        struck = bool(targets) and self._chance.one_of(targets).signal(number)
        self._count(fault, int(struck))
        return struck

    def _stop(self, workers: list[Process], then: signal.Signals | None) -> None:
        """Stop a worker, take what comes from the others, and let it go on, or kill it."""
        if not workers:
            return
        worker = self._chance.one_of(workers)
        if not worker.signal(signal.SIGSTOP):
            return
        try:
            for _ in range(self._chance.between(1, 4)):
                # After an error the next batch is begun anew, maybe by who is stopped.
                if not self._is_ready() or not self._take(is_error_enough=True):
                    break
        finally:
            if then is None:
                worker.signal(signal.SIGCONT)
            else:
                self._deaths += worker.signal(then)
        self._count(STOP if then is None else STOP_AND_KILL)

    def _is_ready(self) -> bool:
        descriptor = self._batches.may_wait
        if descriptor is None:
            return True
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(1000 * _STOPPED_SECONDS)) and self._batches.may_wait is None

    def _restart(self) -> None:
        """Break off, and go on from the state in another place."""
        state = json.dumps(self._loader.state_dict())
        self._count_sprung()
        if self._chance.is_one_in(2):
            self._loader.close()
        del self._batches, self._loader  # which closes it
        self._move()
        self._deaths = self._traps.waiting(DEADLY_TRAPS)
        self._loader.load_state_dict(json.loads(state))
        self._begin()

    def _lay_trap(self) -> None:
        kinds = [kind for kind in self._place.faults() if kind in (*TRAPS_ANYWHERE, *TRAPS_OF_PROCESSES)]
        kind = self._favoured if self._favoured in kinds and self._chance.is_one_in(2) else self._chance.one_of(kinds)
        if kind in DEADLY_TRAPS:
            if self._deaths >= self._most_deaths:
                return
            self._deaths += 1
        self._traps.lay(self._chance.between(0, MOST_ROWS), kind)

    # -- counting

    def _count_sprung(self, *, remove: bool = False) -> None:
        for kind, how_many in self._traps.sprung(remove=remove).items():
            self._count(kind, how_many)

    def _count(self, what: str, how_many: int = 1) -> None:
        if how_many:
            self._findings.counts[self._kind, self._place.name, what] += how_many

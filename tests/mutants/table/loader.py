"""Mutants of the iterator, progress and states."""

from typing import Final

from tests.mutants.planting import Mutant
from tests.mutants.table.golden import GOLDEN, RESUMES

LOADER: Final = (
    Mutant(
        "iterator: an interrupted batch counts as delivered",
        "_loader/_iterator.py",
        "self._progress.at if self._retired else at",
        "self._progress.at",
        ("loader/test_signal_handlers.py::test_a_batch_that_was_counted_when_a_signal_came_is_delivered",),
    ),
    Mutant(
        "iterator: after an interrupt the stream is not reopened",
        "_loader/_iterator.py",
        "self._interrupted = True",
        "self._interrupted = False",
        ("loader/test_signal_handlers.py", "failures/test_lost_interrupts.py"),
    ),
    Mutant(
        "iterator: a counted batch may be lost",
        "_loader/_iterator.py",
        "self._progress.delivered(token)",
        "pass",
        ("loader/test_state.py",),
    ),
    Mutant(
        "iterator: a second thread may be inside next",
        "_loader/_iterator.py",
        "self._reader = thread",
        "pass",
        ("loader/test_two_threads.py",),
    ),
    Mutant(
        "iterator: a new iterator leaves the old one open",
        "_loader/_iterator.py",
        "self._retired = self._retired or why",
        "pass",
        ("loader/test_lifecycle.py",),
    ),
    Mutant(
        "progress: after a break the epoch continues",
        "_loader/_progress.py",
        "last is not None and (position or reached.ahead)",
        "last is not None and reached.ahead",
        ("loader/test_lifecycle.py", "loader/test_state.py"),
    ),
    Mutant(
        "progress: a step above the state's cuts is part of the state",
        "_loader/_progress.py",
        "self._timeline.until(first).segments",
        "self._timeline.segments",
        ("loader/test_state.py", "equivalence/test_recut.py", "loader/test_mutated_states.py"),
    ),
    Mutant(
        "progress: a resume loses the steps that were delivered early",
        "_loader/_progress.py",
        "self.at = (state.step, ahead, None, ())",
        "self.at = (state.step, (), None, ())",
        ("equivalence/golden/test_golden.py::test_a_state_with_later_batches_gives_the_others",),
    ),
    Mutant(
        "progress in order: a batch's token is that of the next one",
        "_loader/_progress.py",
        "last.where._replace(token=token)",
        "last.where",
        (GOLDEN,),
    ),
    Mutant(
        "progress in order: the next epoch has this one's number",
        "_loader/_progress.py",
        "self._next.epoch + 1, self._beginning()",
        "self._next.epoch, self._beginning()",
        (GOLDEN,),
    ),
    Mutant(
        "progress in order: an abandoned epoch is remembered after a seek",
        "_loader/_progress.py",
        "if start.breaks > self._next.breaks",
        "if start.breaks < self._next.breaks",
        ("loader/test_state.py", "equivalence/test_machine.py"),
    ),
    Mutant(
        "reached: adjoining spans stay apart",
        "_loader/_progress.py",
        "ahead and ahead[-1][1] == start",
        "ahead and ahead[-1][1] > start",
        ("loader/test_steps.py",),
    ),
    Mutant(
        "reached: a gap before the first span is lost",
        "_loader/_progress.py",
        "if start <= step:",
        "if start <= step + 1:",
        ("loader/test_steps.py",),
    ),
    Mutant(
        "placed: a batch that can't be handed over is lost",
        "_loader/_placement.py",
        "batch = hand_over()\n placed.popleft()",
        "placed.popleft()\n        batch = hand_over()",
        ("loader/placing/test_placed.py",),
    ),
    Mutant(
        "placed: one batch more than requested is placed ahead",
        "_loader/_placement.py",
        "len(self._placed) < ahead and (self._stream.is_inline",
        "len(self._placed) <= ahead and (self._stream.is_inline",
        ("loader/placing/test_placed.py",),
    ),
    Mutant(
        "placement thread: the consumer isn't woken at the end of a turn",
        "_loader/_placement.py",
        "self.is_over = True\n self._thread.bell.ring()",
        "self.is_over = True",
        ("loader/placing/test_placement_thread.py", "loader/placing/test_placed.py"),
    ),
    Mutant(
        "placement thread: a revoked turn still runs",
        "_loader/_placement.py",
        "if self._removes(_BEGIN):\n self._work()",
        "if self._removes(_BEGIN) or True:\n            self._work()",
        ("loader/placing/test_placement_thread.py", "loader/placing/test_placed.py"),
    ),
    Mutant(
        "sharing: workers of a closed loader are used",
        "_loader/_loader.py",
        "if not self.closer.is_open:",
        "if self.closer is None:",
        ("loader/sharing/test_ends.py",),
    ),
    Mutant(
        "state: a segment at the step is lost",
        "_state.py",
        "segment.step <= step)",
        "segment.step < step)",
        ("loader/test_state.py", RESUMES),
    ),
    Mutant(
        "state: the last short batch of an epoch isn't counted",
        "_state.py",
        "rest // batch if self.drops_remainder else -(-rest // batch)",
        "rest // batch",
        (GOLDEN,),
    ),
)

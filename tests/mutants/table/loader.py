"""Mutants of the iterator, progress and states."""

from typing import Final

from tests.mutants.planting import Faults
from tests.mutants.table.golden import GOLDEN, RESUMES

LOADER: Final[Faults] = {
    "_loader/_iterator.py": {
        "iterator: an interrupted batch counts as delivered": (
            *("at if self._progress.current_pass is self._pass else self._progress.at", "self._progress.at"),
            "loader/test_signal_handlers.py::test_a_batch_that_was_counted_when_a_signal_came_is_delivered",
        ),
        "iterator: after an interrupt the stream is not reopened": (
            *("self._interrupted = True", "self._interrupted = False"),
            *("loader/test_signal_handlers.py", "failures/test_lost_interrupts.py"),
        ),
        "iterator: a counted batch may be lost": (
            *("self._progress.delivered(token, self._pass)", "pass"),
            "loader/test_state.py",
        ),
        "iterator: a second thread may be inside next": ("self._reader = thread", "pass", "loader/test_two_threads.py"),
        "iterator: a new iterator leaves the old one open": (
            *("self._retired = self._retired or why", "pass"),
            "loader/test_lifecycle.py",
        ),
    },
    "_loader/_progress.py": {
        "progress: after a break the epoch continues": (
            *("last is not None and (position or reached.ahead)", "last is not None and reached.ahead"),
            *("loader/test_lifecycle.py", "loader/test_state.py"),
        ),
        "progress: a step above the state's cuts is part of the state": (
            *("timeline.until(first).segments", "timeline.segments"),
            *("loader/test_state.py", "equivalence/test_ranks.py", "loader/test_mutated_states.py"),
        ),
        "progress: a resume loses the steps that were delivered early": (
            *("Reached(state.step, ahead), state.epoch", "Reached(state.step), state.epoch"),
            "equivalence/golden/test_golden.py::test_a_state_with_later_batches_gives_the_others",
        ),
        "progress in order: a batch's token is that of the next one": (
            *("last.late._replace(token=token)", "last.place"),
            GOLDEN,
        ),
        "progress: a batch of an earlier pass is counted": (
            *("raise ClosedError(MOVED)\n        self.at = at", "pass\n        self.at = at"),
            "loader/test_other_threads.py",
        ),
        "progress in order: a batch of an earlier pass is counted": (
            *("if self.current_pass is of_pass:\n            self.at = at", "if True:\n            self.at = at"),
            "loader/test_other_threads.py",
        ),
        "progress in order: the next epoch has this one's number": (
            *("start.epoch + 1, self._beginning()", "start.epoch, self._beginning()"),
            GOLDEN,
        ),
        "progress in order: an abandoned epoch is remembered after a seek": (
            *("start: start.breaks <= breaks", "start: start.breaks >= breaks"),
            "loader/test_state.py",
        ),
        "reached: adjoining spans stay apart": (
            *("ahead and ahead[-1][1] == start", "ahead and ahead[-1][1] > start"),
            "loader/test_steps.py",
        ),
        "reached: a gap before the first span is lost": (
            *("if start <= step:", "if start <= step + 1:"),
            "loader/test_steps.py",
        ),
    },
    "_loader/_placement.py": {
        "placed: who closes drops what the consumer uses": (
            *("if not self._is_inside:\n            self._drop()", "self._drop()"),
            "loader/test_other_threads.py::test_another_thread_may_close_a_loader_that_places_batches_ahead",
        ),
        "placed: a batch that can't be handed over is lost": (
            *("batch = hand_over()\n placed.popleft()", "placed.popleft()\n        batch = hand_over()"),
            "loader/placing/test_placed.py",
        ),
        "placed: one batch more than requested is placed ahead": (
            "len(self._placed) < ahead and (self._stream.is_inline",
            "len(self._placed) <= ahead and (self._stream.is_inline",
            "loader/placing/test_placed.py",
        ),
        "placement thread: the consumer isn't woken at the end of a turn": (
            *("self.is_over = True\n self._thread.bell.ring()", "self.is_over = True"),
            *("loader/placing/test_placement_thread.py", "loader/placing/test_placed.py"),
        ),
        "placement thread: a revoked turn still runs": (
            "if self._removes(_BEGIN):\n self._work()",
            "if self._removes(_BEGIN) or True:\n            self._work()",
            *("loader/placing/test_placement_thread.py", "loader/placing/test_placed.py"),
        ),
    },
    "_loader/_loader.py": {
        "loader: a state is loaded while another thread begins a pass": (
            *("with self._moves:\n            self._progress.restore", "if True:\n            self._progress.restore"),
            "loader/test_other_threads.py",
        ),
        "loader: two threads may begin passes at once": (
            *("with self._moves:\n            self._retire_iterator", "if True:\n            self._retire_iterator"),
            "loader/test_other_threads.py",
        ),
        "loader: an iterator that loads a state isn't the current one": (
            *("self._iterator = weakref.ref(iterator)\n            try:", "try:"),
            "loader/test_set_state.py",
        ),
        "sharing: workers of a closed loader are used": (
            *("if not self.closer.is_open:", "if self.closer is None:"),
            "loader/sharing/test_ends.py",
        ),
    },
    "_state.py": {
        "state: a segment at the step is lost": (
            *("segment.step <= step)", "segment.step < step)"),
            *("loader/test_state.py", RESUMES),
        ),
        "state: the last short batch of an epoch isn't counted": (
            *("rest // batch if self.drops_remainder else -(-rest // batch)", "rest // batch"),
            GOLDEN,
        ),
    },
}

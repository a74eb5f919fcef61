"""A loader equals a plain model of the definition under operations in any order."""

import bisect
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock as ps
from penstock.batching import stack
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import close_all, concatenated, digest, element_of, ranks_of
from tests.equivalence.functions import keeps_two_of_three, with_origin
from tests.profiles import in_short

LENGTH = 31
SIZES = st.sampled_from([4, 6, 10, 12, 24])
RANKS = st.sampled_from([1, 2, 2, 4])
WORKERS = st.sampled_from([0, 0, 1, 3])
REMAINDERS = st.sampled_from(["keep", "drop", "pad"])


class Place(NamedTuple):
    """The start of a batch, and the number of rows of a full one."""

    epoch: int
    row: int
    size: int


class Saved(NamedTuple):
    """A state, and the model's knowledge when it was saved."""

    state: str
    step: int
    place: Place
    history: dict[int, Place]
    dataset: ps.Dataset


class LoaderMachine(RuleBasedStateMachine):
    """A loader for each rank, under the same operations, with a model of the start of each step and of the next.

    `rows` are the rows of each epoch by the definition. Rows are counted as they are delivered.
    """

    seeks_positions = True

    saved = Bundle("saved")
    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.scope = ExitStack()  # of random decisions

    @initialize(seed=st.integers(0, 1000), size=SIZES, remainder=REMAINDERS, workers=WORKERS, decisions=DECISIONS)
    def start(self, seed: int, size: int, remainder: Any, workers: int, decisions: int | None) -> None:
        """Describe a dataset, and open a loader of it."""
        self.scope.enter_context(random_decisions(decisions))
        self.length = LENGTH
        rows = ps.range(LENGTH, seed=seed).shuffle().map_with_origin(with_origin)
        self.dataset = rows.filter(keeps_two_of_three) if self.ordered else rows
        self.definition = rows
        self.begin(size, remainder, workers)

    def begin(self, size: int, remainder: Any, workers: int) -> None:
        """Open a loader of the dataset, for one rank."""
        self.rows: dict[int, Sequence[Any]] = {}
        self.positions: dict[int, list[int]] = {}
        self.remainder = remainder
        self.workers, self.ranks = workers, 1
        self.step, self.place = 0, Place(0, 0, size)
        self.history: dict[int, Place] = {}
        self.left: int | None = None  # how many batches the open iterator still gives
        self.gave = False  # whether the loader has delivered a batch since the last seek or load
        self.cuts = 0
        self.open_loaders()

    # -- the model

    def rows_of(self, epoch: int) -> Sequence[Any]:
        """Return all rows of an epoch, by the definition."""
        if epoch not in self.rows:
            found = [element_of(self.definition, epoch, position) for position in range(self.length)]
            kept = [i for i, row in enumerate(found) if not self.ordered or keeps_two_of_three(row)]
            self.positions[epoch] = kept
            self.rows[epoch] = [found[i] for i in kept]
        return self.rows[epoch]

    def batch_of(self, place: Place) -> Any:
        """Return a batch by the definition."""
        rows = list(self.rows_of(place.epoch)[place.row : place.row + place.size])
        if self.remainder == "pad":
            rows = rows + [rows[-1]] * (place.size - len(rows))
        return digest(stack(rows))

    def batches_from(self, place: Place) -> int:
        """Return the number of batches of the rest of an epoch."""
        left = max(len(self.rows_of(place.epoch)) - place.row, 0)
        return left // place.size if self.remainder == "drop" else -(-left // place.size)

    def after(self, place: Place) -> Place:
        """Return the place of the batch after this one."""
        return self.settled(place._replace(row=place.row + place.size))

    def settled(self, place: Place) -> Place:
        """Return the place, or the next epoch's start if nothing is left."""
        return place if self.batches_from(place) else place._replace(epoch=place.epoch + 1, row=0)

    def ends_unevenly(self, place: Place) -> bool:
        """Return whether some rank would have no row of the epoch's last batch."""
        rows = (self.length - place.row) % place.size
        return not self.ordered and self.remainder == "keep" and 0 < rows < self.ranks

    def has_too_few_rows(self, place: Place) -> bool:
        """Return whether a batch, cut for fewer ranks, has no row for some of these."""
        return self.remainder == "keep" and 0 < len(self.rows_of(place.epoch)) - place.row < self.ranks

    def stand(self, step: int, place: Place, history: dict[int, Place]) -> None:
        """Set the place before a step, with all iterators closed."""
        self.step, self.place = step, self.settled(place)
        self.history = {known: each for known, each in history.items() if known < step}
        self.left, self.gave = None, False
        self.cuts += 1

    # -- the loader

    def open_loaders(self) -> None:
        """Open a loader for each rank."""
        dataset = self.dataset.batch(self.place.size, remainder=self.remainder)
        self.loaders = ranks_of(dataset, self.ranks, num_workers=self.workers)
        self.iterators: list[Any] = []

    def state(self, step: int | None = None) -> str:
        """Return the state, the same for all ranks, as text."""
        states = [json.dumps(loader.state_dict(step)) for loader in self.loaders]
        assert len(set(states)) == 1
        assert len(states[0]) < 1000
        return states[0]

    @rule()
    def iterate(self) -> None:
        """Start the next epoch, or continue after a restore or a seek."""
        self.start_iterating()

    def start_iterating(self) -> None:
        """Start iterators of the loaders, and tell the model."""
        if self.gave and self.place.row:  # the epoch was left early
            self.place = self.place._replace(epoch=self.place.epoch + 1, row=0)
            self.cuts += 1
        self.gave = False
        self.iterators = [iter(loader) for loader in self.loaders]
        self.left = self.batches_from(self.place)

    @precondition(lambda self: self.left is not None)
    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        """Request some batches."""
        for _ in range(count):
            self.take_one()

    def take_one(self) -> None:
        """Request a batch, and compare it with the definition."""
        if not self.left:
            for iterator in self.iterators:
                with pytest.raises(StopIteration):
                    next(iterator)
            return
        found = concatenated([next(iterator) for iterator in self.iterators])
        assert digest(found) == self.batch_of(self.place)
        assert [loader.step for loader in self.loaders] == [self.step] * self.ranks
        assert [loader.epoch for loader in self.loaders] == [self.place.epoch] * self.ranks
        self.history[self.step] = self.place
        self.step, self.place = self.step + 1, self.after(self.place)
        self.left -= 1
        self.gave = True

    @rule(target=saved)
    def save(self) -> Saved:
        """Save the loader's state."""
        return self.saved_now()

    def saved_now(self) -> Saved:
        """Return the state, and the model's knowledge."""
        return Saved(self.state(), self.step, self.place, dict(self.history), self.dataset)

    @precondition(lambda self: self.history)
    @rule(target=saved, data=st.data())
    def save_an_earlier_step(self, data: st.DataObject) -> Saved:
        """Save as if fewer batches had been delivered."""
        step = data.draw(st.sampled_from(sorted(self.history)))
        self.history = self.still_known(step)
        if step not in self.history:
            return self.saved_now()
        return Saved(self.state(step), step, self.history[step], dict(self.history), self.dataset)

    def still_known(self, step: int) -> dict[int, Place]:
        """Return the history without the steps that a loader may forget after many changes of batch size."""
        self.batch_of(self.history[step])  # ends the example if the definition can't compute it
        try:
            self.loaders[-1].batch_at(step)
        except ps.errors.StateError:
            assert self.cuts >= 7
            return {known: place for known, place in self.history.items() if known > step}
        return self.history

    @rule(saved=saved)
    def restore(self, saved: Saved) -> None:
        """Load a state, whatever happened since it was saved."""
        self.load(saved)

    def load(self, saved: Saved) -> None:
        """Load a state of the same dataset."""
        place = self.settled(saved.place._replace(size=self.place.size))
        if self.ends_unevenly(saved.place._replace(size=self.place.size)):
            before = self.state()
            with pytest.raises(ps.errors.StateError, match=r"some would end a step early"):
                self.loaders[0].load_state_dict(saved.state)
            assert self.state() == before
            return
        for loader in self.loaders:
            loader.load_state_dict(saved.state)
        self.stand(saved.step, place, saved.history)
        self.forget_across_restores()

    def forget_across_restores(self) -> None:
        """Datasets read in order know only the steps that this loader has delivered."""
        if self.ordered:
            self.history = {}

    @rule(workers=WORKERS, size=SIZES, ranks=RANKS)
    def reopen(self, workers: int, size: int, ranks: int) -> None:
        """Close, and continue with other workers, another batch size and other ranks."""
        state, old = self.state(), self.ranks
        close_all(self.loaders)
        with pytest.raises(ps.errors.ClosedError):
            iter(self.loaders[0])
        self.workers, self.ranks = workers, 1 if self.ordered else ranks
        place = self.place._replace(size=size)
        if size % self.ranks or self.ends_unevenly(place) or self.ends_unevenly(place._replace(row=0)):
            self.ranks, place = old, self.place
        self.place = place
        self.open_loaders()
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.stand(self.step, place, self.history)
        self.forget_across_restores()

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def seek_back(self, data: st.DataObject) -> None:
        """Go back to a delivered step."""
        step = data.draw(st.sampled_from(sorted(self.history)))
        self.history = self.still_known(step)
        if step in self.history:
            self.go_to(step, self.history[step]._replace(size=self.place.size))

    @precondition(lambda self: self.seeks_positions)
    @rule(data=st.data())
    def seek_a_position(self, data: st.DataObject) -> None:
        """Go to a position of an epoch; the next step keeps its number, and batches are divided from there."""
        epoch = data.draw(st.integers(0, self.place.epoch + 1))
        position = data.draw(st.integers(0, self.length))
        self.rows_of(epoch)
        place = Place(epoch, bisect.bisect_left(self.positions[epoch], position), self.place.size)
        if position == self.length:
            place = Place(epoch + 1, 0, self.place.size)
        if self.ends_unevenly(place):
            with pytest.raises(ps.errors.StateError, match=r"some would end a step early"):
                self.loaders[0].seek(position=position, epoch=epoch)
            return
        for loader in self.loaders:
            loader.seek(position=position, epoch=epoch)
        self.stand(self.step, place, self.history)

    @precondition(lambda self: not self.ordered)
    @rule(ahead=st.integers(0, 20))
    def seek_ahead(self, ahead: int) -> None:
        """Go to a later step."""
        place, history = self.place, dict(self.history)
        for step in range(self.step, self.step + ahead):
            history[step] = place
            place = self.after(place)
        self.history = history
        self.go_to(self.step + ahead, place)

    @rule(ahead=st.integers(0, 3))
    def look_ahead(self, ahead: int) -> None:
        """Request a batch that was not delivered yet; a dataset that is read in order may not know it."""
        place = self.place
        for _ in range(ahead):  # a dataset that is read in order may stand at the end of an epoch
            place = LoaderMachine.settled(self, self.after(LoaderMachine.settled(self, place)))
        expected = None if self.ordered else self.batch_of(place)
        try:
            found = concatenated([loader.batch_at(self.step + ahead) for loader in self.loaders])
        except ps.errors.StateError:
            assert self.ordered
        else:
            assert digest(found) == (expected or self.batch_of(place))

    def go_to(self, step: int, place: Place) -> None:
        """Seek, or check the error."""
        if self.ends_unevenly(place):
            with pytest.raises(ps.errors.StateError, match=r"some would end a step early"):
                self.loaders[0].seek(step)
            self.history = {known: each for known, each in self.history.items() if known < self.step}
            return
        for loader in self.loaders:
            loader.seek(step)
        self.stand(step, place, self.history)

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        """Request an earlier step, and the origin of one of its rows."""
        step = data.draw(st.sampled_from(sorted(self.history)))
        self.history = self.still_known(step)
        if step not in self.history:
            return
        place = self.history[step]
        if self.has_too_few_rows(place):
            with pytest.raises(ps.errors.StateError, match=r"was cut for fewer ranks: rank 0"):
                self.loaders[0].batch_at(step)
            return
        parts = [loader.batch_at(step) for loader in self.loaders]
        assert digest(concatenated(parts)) == self.batch_of(place)
        rows = self.rows_of(place.epoch)[place.row : place.row + place.size]
        number = data.draw(st.integers(0, len(rows) - 1))
        low = 0
        for loader, part in zip(self.loaders, parts, strict=True):
            high = low + len(part["origin"]["key"])
            if low <= number < high:
                origin = loader.origin(step, number - low)
                expected = rows[number]["origin"]
                assert (origin.epoch, origin.position) == (expected["epoch"], expected["position"])
                assert (origin.key, origin.index) == (expected["key"], expected["index"])
            low = high

    @invariant()
    def says_where_it_is(self) -> None:
        """Before a batch is delivered, the loader's place is that of the next one."""
        if self.gave:
            return
        for loader in self.loaders:
            assert (loader.step, loader.epoch) == (self.step, self.place.epoch)

    def teardown(self) -> None:
        """Close the loaders."""
        close_all(getattr(self, "loaders", []))
        self.scope.close()


class OrderedMachine(LoaderMachine):
    """The same for a dataset that is read in order: one rank, and only delivered steps can be returned to.

    An epoch ends where its end is met: before, a loader that resumes or seeks has an empty rest of it.
    """

    ordered = True
    met_end = False

    def after(self, place: Place) -> Place:
        """Return the place of the batch after this one, also if there is none."""
        return place._replace(row=place.row + place.size)

    def settled(self, place: Place) -> Place:
        """Return the place, also if nothing is left there."""
        return place

    def start_iterating(self) -> None:
        """Start iterators of the loaders, and tell the model."""
        self.met_end = False
        super().start_iterating()

    def take_one(self) -> None:
        """Request a batch, and compare it with the definition."""
        ends = not self.left and not self.met_end
        super().take_one()
        if ends:
            self.met_end = True
            self.place = self.place._replace(epoch=self.place.epoch + 1, row=0)


TestIndexed = LoaderMachine.TestCase
TestIndexed.settings = settings(in_short(15), stateful_step_count=30)
TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = settings(in_short(15), stateful_step_count=30)

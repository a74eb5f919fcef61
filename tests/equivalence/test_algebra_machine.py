"""Random datasets under random operations of a loader: each batch equals that of a plain model."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from hypothesis import reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import penstock as ps
from tests.equivalence.asynchronous import KEYS_PER_READ, made_async
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import close_all, digest, element_of, never_ends, positions_of
from tests.equivalence.functions import with_origin
from tests.equivalence.graphs import indexable
from tests.equivalence.joins import uniform, weights
from tests.equivalence.mixtures import NAMES, Mixture, any_indexable, enough, indexable_mixtures, named
from tests.equivalence.test_machine import REMAINDERS, SIZES, WORKERS, LoaderMachine, Place, Saved
from tests.profiles import in_short

LEAST = 24  # rows of an epoch: as many as the largest batch


class Rows(Sequence[Any]):
    """The rows of an epoch by the definition, each computed on first use."""

    def __init__(self, dataset: ps.Dataset, epoch: int) -> None:
        self._dataset, self._epoch = dataset, epoch
        self._count = positions_of(dataset) or 0
        self._found: list[Any] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: Any) -> Any:
        stop = key.indices(self._count)[1] if isinstance(key, slice) else key + 1
        try:
            for position in range(len(self._found), stop):
                self._found.append(element_of(self._dataset, self._epoch, position))
        except ValueError:
            reject()  # no substitute was found within the attempts
        return self._found[key]


class AlgebraMachine(LoaderMachine):
    """A loader for each rank of any indexable dataset; a mixture's weights may change, and parts be added."""

    seeks_positions = False  # the definition would compute all rows before a far one, which takes minutes

    @initialize(data=st.data(), size=SIZES, remainder=REMAINDERS, workers=WORKERS, decisions=DECISIONS)
    def start(self, data: st.DataObject, size: int, remainder: Any, workers: int, decisions: int | None) -> None:
        """Draw a dataset, perhaps with async sources, and open a loader of it."""
        self.scope.enter_context(random_decisions(decisions))
        self.mixture: Mixture | None = None
        self.mixtures: dict[int, Mixture] = {}
        if data.draw(st.booleans()):
            self.mixture = data.draw(indexable_mixtures().filter(lambda mixture: has_enough(mixture.dataset)))
            self.use_mixture(self.mixture)
        else:
            rows = data.draw(enough(any_indexable().map(lambda dataset: dataset.map(uniform, name="row")), LEAST))
            self.use(rows.map(uniform, name="whole").map_with_origin(with_origin))
            if data.draw(st.booleans()):
                self.dataset = made_async(self.definition, data.draw(KEYS_PER_READ))
        self.begin(size, remainder, workers)

    def use_mixture(self, mixture: Mixture) -> None:
        """Make a mixture the loaded dataset."""
        self.mixture = mixture
        self.use(mixture.dataset.map_with_origin(with_origin))
        self.mixtures[id(self.dataset)] = mixture

    def use(self, dataset: ps.Dataset) -> None:
        """Make a dataset the loaded one."""
        self.dataset = self.definition = dataset
        self.length = positions_of(dataset) or 0
        self.rows = {}

    def check_parts(self, mixture: Mixture) -> None:
        """Each part's elements come in its own order without gaps, and all of them, if the weights say so."""
        last = mixture.schedule[max(mixture.schedule)]
        if mixture.stop == "all" and all(map(last.get, mixture.parts)):
            assert len(mixture.mixed) == sum(map(len, mixture.parts.values()))
        try:
            found = list(islice(mixture.mixed, 80))
            for name in mixture.parts:
                own = [element for element in found if element["part"] == name]
                assert own == list(islice(mixture.alone(name), len(own)))
        except ValueError:
            reject()  # no substitute was found within the attempts

    def rows_of(self, epoch: int) -> Sequence[Any]:
        """Return all rows of an epoch, by the definition."""
        if epoch not in self.rows:
            self.rows[epoch] = Rows(self.definition, epoch)
        return self.rows[epoch]

    def take_one(self) -> None:
        """Request a batch, and compare it with the definition."""
        if self.left:
            self.batch_of(self.place)  # which may reject it
        super().take_one()

    def ends_unevenly(self, place: Place) -> bool:
        """Return whether some rank would have no row of the epoch's last batch."""
        return not never_ends(self.definition) and super().ends_unevenly(place)

    @precondition(lambda self: self.mixture is not None)
    @rule(data=st.data())
    def change_weights(self, data: st.DataObject) -> None:
        """Continue with other weights from here on, and perhaps with one more part, without a weight until now."""
        self.change(data)

    @precondition(lambda self: self.mixture is not None)
    @rule(saved=LoaderMachine.saved, data=st.data())
    def continue_after_another_change(self, saved: Saved, data: st.DataObject) -> None:
        """Go back, change the weights there, and try a state from after that."""
        later = self.saved_now()
        self.load_any(saved)
        self.change(data)
        self.load_any(later)

    def change(self, data: st.DataObject) -> None:
        """Load the state into a mixture with another future."""
        old, before = self.mixture, self.dataset
        assert old is not None
        unused = [name for name in NAMES if name not in old.parts]
        more = data.draw(st.lists(st.sampled_from(unused), max_size=1)) if unused else []
        parts = {name: named(data.draw(enough(indexable(), 1)), name) for name in more}
        changed = old.changed(self.place.row, data.draw(weights([*old.parts, *more])), parts)
        if not has_enough(changed.dataset):
            return
        state, seen = self.state(), self.seen(self.place)
        self.check_parts(changed)
        self.use_mixture(changed)
        is_same = self.seen(self.place) == seen  # if not, all weighted parts had ended, and a later stretch began early
        if not self.is_uneven() and self.reopen_with(state):
            assert is_same
        else:  # before the first row, and in later epochs, all of a mixture counts
            assert self.place.epoch or not self.place.row or not is_same or self.is_uneven()
            self.mixture = old
            self.use(before)
            assert self.reopen_with(state)
        self.stand(self.step, self.place, self.history)

    def is_uneven(self) -> bool:
        """Return whether some rank would have no row of the last batch of this or a later epoch."""
        return self.ends_unevenly(self.place) or self.ends_unevenly(self.place._replace(row=0))

    def seen(self, place: Place) -> list[Any]:
        """Return the rows of an epoch before a place."""
        return list(map(digest, self.rows_of(place.epoch)[: place.row]))

    def reopen_with(self, state: str) -> bool:
        """Open loaders of the dataset, and return whether they accept a state."""
        close_all(self.loaders)
        self.open_loaders()
        return self.take_state(state)

    def take_state(self, state: str) -> bool:
        """Load a state, and return whether the loader accepted it."""
        try:
            for loader in self.loaders:
                loader.load_state_dict(state)
        except ps.errors.StateError:
            return False
        return True

    @rule(saved=LoaderMachine.saved)
    def restore(self, saved: Saved) -> None:
        """Load a state; a mixture with another past refuses it."""
        self.load_any(saved)

    def load_any(self, saved: Saved) -> None:
        """Load a state of this dataset, or of the mixture as it was before its weights changed."""
        if saved.dataset is self.dataset:
            self.load(saved)
            return
        place = saved.place._replace(size=self.place.size)
        if self.ends_unevenly(place):
            return
        state, (own, other) = self.state(), (self.mixtures[id(each)] for each in (self.dataset, saved.dataset))
        is_same = self.seen(place) == list(map(digest, Rows(saved.dataset, place.epoch)[: place.row]))
        if self.take_state(saved.state):
            assert is_same
            self.stand(saved.step, self.settled(place), saved.history)
        else:
            assert place.epoch or not is_same or own.past(place.row) != other.past(place.row)
            assert self.state() == state


def has_enough(dataset: ps.Dataset) -> bool:
    """Return whether an epoch has as many rows as the largest batch."""
    return (positions_of(dataset) or 0) >= LEAST


TestAlgebra = AlgebraMachine.TestCase
TestAlgebra.settings = settings(in_short(15), stateful_step_count=20)

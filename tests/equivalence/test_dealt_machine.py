"""A dataset that is read in order, on a changing number of ranks: each row of the definition once.

While the number of ranks stays, each rank has the definition's rows, in order. After a deal to other ranks, the rest of
the epoch is known only as a whole: no row of it is lost or repeated. A rank that goes back gets the same rows again.
"""

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from hypothesis import reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

import penstock as ps
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import close_all, digest, positions_of, rank_of
from tests.equivalence.functions import keeps_two_of_three
from tests.equivalence.joins import in_order, weights
from tests.equivalence.mixtures import Mixture, grouped, ordered_mixtures
from tests.profiles import fewer

SIZES = st.sampled_from([12, 12, 24, 36])  # for 1, 2, 3 and 4 ranks
RANKS = st.sampled_from([1, 2, 3, 4])
WORKERS = st.sampled_from([0, 0, 1, 3])
LATER = st.sampled_from([0, 0, 1, 7])


def rows_of(dataset: ps.Dataset, epoch: int, rank: int, ranks: int) -> list[str]:
    """Return a digest of each row of a rank, by the definition."""
    try:
        batches = rank_of(dataset.batch(12, merge=list), epoch, rank, ranks)
        return [repr(digest(row)) for batch in batches for row in batch]
    except ValueError:
        reject()  # no substitute was found within the attempts


@dataclass
class Deal:
    """The known part of what ranks get of an epoch; two states of one deal agree on it.

    Attributes:
        known: the rows of each rank in order, from where the deal began.
        left: for each row, how often it has not been delivered yet.
        ends: how many rows each rank has, where that is known.
        is_whole: whether the ranks have the definition's rows of a whole epoch.
    """

    known: list[list[str]]
    left: Counter[str] = field(default_factory=Counter[str])
    ends: dict[int, int] = field(default_factory=dict[int, int])
    is_whole: bool = False

    def rest(self, rows: list[int]) -> Counter[str]:
        """Return all rows after the ranks' first ones."""
        rest = Counter(self.left)
        for known, start in zip(self.known, rows, strict=True):
            rest.update(known[start:])
        return rest


class At(NamedTuple):
    """A rank's progress: its step, the number of its rows in the deal, and whether its epoch was seen to end."""

    step: int
    row: int
    ended: bool


class Saved(NamedTuple):
    """All ranks' states, and the model's knowledge when they were saved."""

    states: list[str]
    epoch: int
    deal: Deal
    ats: list[At]
    dataset: ps.Dataset


def prefixes(rows: list[list[str]], counts: list[int]) -> list[list[str]]:
    """Return the given number of each rank's first rows."""
    return [own[:count] for own, count in zip(rows, counts, strict=True)]


class DealtMachine(RuleBasedStateMachine):
    """A loader for each rank, with the rows that each must get."""

    saved = Bundle("saved")

    def __init__(self) -> None:
        super().__init__()
        self.scope = ExitStack()  # of random decisions

    @initialize(data=st.data(), size=SIZES, ranks=RANKS, workers=WORKERS, decisions=DECISIONS)
    def start(self, data: st.DataObject, size: int, ranks: int, workers: int, decisions: int | None) -> None:
        """Draw a dataset, and open loaders of it."""
        self.scope.enter_context(random_decisions(decisions))
        self.mixture: Mixture | None = None
        self.can_deal = True
        if data.draw(st.booleans()):
            self.mixture = data.draw(ordered_mixtures())
            self.dataset = self.mixture.dataset
        else:
            self.can_deal = data.draw(st.booleans())
            self.dataset = data.draw(in_order(dealable=True) if self.can_deal else in_order() | grouped())
            if positions_of(self.dataset) is not None:
                self.dataset = self.dataset.filter(keeps_two_of_three)
        self.size, self.ranks, self.workers = size, ranks, workers
        self.open_loaders()
        self.begin_epoch(0, [0] * ranks)

    # -- the model

    def begin_epoch(self, epoch: int, steps: list[int]) -> None:
        """Set the rows of an epoch, all known by the definition."""
        self.stand(epoch, self.whole(epoch), [At(step, 0, ended=False) for step in steps])

    def whole(self, epoch: int) -> Deal:
        """Return the deal in which everything is known."""
        known = [rows_of(self.dataset, epoch, rank, self.ranks) for rank in range(self.ranks)]
        return Deal(known, ends={rank: len(rows) for rank, rows in enumerate(known)}, is_whole=True)

    def stand(self, epoch: int, deal: Deal, ats: list[At]) -> None:
        """Set the ranks' progress, without earlier steps."""
        self.epoch, self.deal, self.ats = epoch, deal, ats
        self.history: list[dict[int, At]] = [{} for _ in ats]
        self.gave = [False] * len(ats)

    # -- the loaders

    def open_loaders(self) -> None:
        """Open a loader for each rank, of batches that are lists of rows."""
        batches = self.dataset.batch(self.size, merge=list)
        shards = [ps.Shard(rank, self.ranks, uneven=True) for rank in range(self.ranks)]
        self.loaders = [ps.Loader(batches, num_workers=self.workers, shard=shard) for shard in shards]
        self.iterators: dict[int, Any] = {}

    def states(self) -> list[str]:
        """Return all ranks' states, as text."""
        return [json.dumps(loader.state_dict()) for loader in self.loaders]

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        """Request some batches of every rank; ranks that have ended wait for the others."""
        self.take_from_all(count)

    @rule()
    def finish(self) -> None:
        """Read the rest of the epoch; no row of it is missing."""
        self.read_to_the_end()

    def read_to_the_end(self) -> None:
        """Take batches until all ranks have ended."""
        while not all(at.ended for at in self.ats):
            self.take_from_all(4)
        assert not +self.deal.left

    def take_from_all(self, count: int) -> None:
        """Take a number of batches of every rank that has not ended."""
        for rank in range(self.ranks):
            for _ in range(count):
                if not self.ats[rank].ended:
                    self.take_one(rank)

    def take_one(self, rank: int) -> None:
        """Request a batch of a rank, and compare it."""
        at, loader = self.ats[rank], self.loaders[rank]
        if rank not in self.iterators:
            self.iterators[rank] = iter(loader)
        try:
            batch = [repr(digest(row)) for row in next(self.iterators[rank])]
        except StopIteration:
            self.end(rank)
            return
        assert (loader.step, loader.epoch) == (at.step, self.epoch)
        assert 0 < len(batch) <= self.size // self.ranks
        self.expect(rank, at.row, batch)
        self.history[rank][at.step] = at
        self.ats[rank] = At(at.step + 1, at.row + len(batch), ended=False)
        self.gave[rank] = True

    def expect(self, rank: int, start: int, batch: list[str]) -> None:
        """Compare rows with the known ones, and with the remaining ones."""
        known = self.deal.known[rank]
        assert batch[: len(known) - start] == known[start : start + len(batch)]
        for row in batch[max(len(known) - start, 0) :]:
            assert rank not in self.deal.ends
            assert self.deal.left[row] > 0
            self.deal.left[row] -= 1
            known.append(row)

    def end(self, rank: int) -> None:
        """Note that a rank has ended its epoch."""
        at = self.ats[rank]
        assert self.deal.ends.setdefault(rank, at.row) == at.row == len(self.deal.known[rank])
        self.ats[rank] = at._replace(ended=True)

    @precondition(lambda self: all(at.ended or gave for at, gave in zip(self.ats, self.gave, strict=True)))
    @rule()
    def next_epoch(self) -> None:
        """Begin the next epoch, whether or not this one has ended; its rows are the definition's again."""
        self.iterators = {rank: iter(loader) for rank, loader in enumerate(self.loaders)}
        self.begin_epoch(self.epoch + 1, [at.step for at in self.ats])

    @rule(target=saved)
    def save(self) -> Saved:
        """Save the states of all ranks."""
        return Saved(self.states(), self.epoch, self.deal, list(self.ats), self.dataset)

    @rule(saved=saved, workers=WORKERS, size=SIZES, together=st.booleans())
    def restore(self, saved: Saved, workers: int, size: int, *, together: bool) -> None:
        """Close, and resume from a state, with other workers and another batch size, on the same number of ranks."""
        is_same = saved.dataset is self.dataset
        if is_same or (self.mixture is not None and not self.mixture.holds_rows and saved.deal.is_whole):
            self.reopen(saved, len(saved.ats), workers, size, together=together)
            if not is_same:  # the mixture has had other weights since
                self.know_only(self.deal.rest([at.row for at in self.ats]))

    @precondition(lambda self: self.can_deal and (self.mixture is None or len(self.mixture.schedule) == 1))
    @rule(ranks=RANKS, workers=WORKERS, size=SIZES, steps=st.none() | st.integers(0, 3))
    def change_ranks(self, ranks: int, workers: int, size: int, steps: int | None) -> None:
        """Deal the rest, perhaps after some steps, to other ranks; then perhaps read it to the end."""
        self.take_from_all(steps or 0)
        saved = Saved(self.states(), self.epoch, self.deal, self.ats, self.dataset)
        self.reopen(saved, ranks, workers, size, together=True)
        if steps is not None:
            self.read_to_the_end()

    def reopen(self, saved: Saved, ranks: int, workers: int, size: int, *, together: bool = False) -> None:
        """Close, and resume from a state: each rank from its own, or together, from the states of all.

        Together, all ranks are in the same epoch: those that had ended it have an empty rest.
        """
        close_all(self.loaders)
        self.ranks, self.workers, self.size = ranks, workers, size
        self.open_loaders()
        if ranks == len(saved.ats):
            for loader, state in zip(self.loaders, saved.states, strict=True):
                loader.load_state_dict(saved.states if together else state)
            ended = [loader.epoch > saved.epoch for loader in self.loaders]
            assert not together or len(set(ended)) == 1
            for rank, at in enumerate(saved.ats):  # an empty rest is saved as the state at its end
                can_end = at.ended or not saved.deal.is_whole or at.row == saved.deal.ends[rank]
                assert can_end if ended[rank] else together or not at.ended
            ats = [at._replace(ended=has_ended) for at, has_ended in zip(saved.ats, ended, strict=True)]
            self.stand(saved.epoch, saved.deal, ats)
            return
        for loader in self.loaders:
            loader.load_state_dict(saved.states)
        assert len({loader.epoch for loader in self.loaders}) == 1
        ats = [At(loader.step, 0, ended=False) for loader in self.loaders]
        if all(at.ended for at in saved.ats):
            self.stand(saved.epoch + 1, self.whole(saved.epoch + 1), ats)
        else:
            self.stand(saved.epoch, saved.deal, list(saved.ats))
        self.know_only(self.deal.rest([at.row for at in self.ats]), ats)

    def know_only(self, rest: Counter[str], ats: list[At] | None = None) -> None:
        """Keep only the remaining rows over all ranks, without their division among the ranks."""
        ats = [at._replace(row=0) for at in ats or self.ats]
        self.stand(self.epoch, Deal([[] for _ in ats], rest), ats)

    @precondition(lambda self: any(self.history))
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """Let one rank go back to a step of this epoch."""
        rank = data.draw(st.sampled_from([rank for rank in range(self.ranks) if self.history[rank]]))
        step = data.draw(st.sampled_from(sorted(self.history[rank])))
        self.loaders[rank].seek(step)
        self.iterators.pop(rank, None)
        self.ats[rank] = self.history[rank][step]
        self.gave[rank] = False

    @precondition(lambda self: any(self.history))
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        """Request an earlier step of one rank, which doesn't change its progress."""
        rank = data.draw(st.sampled_from([rank for rank in range(self.ranks) if self.history[rank]]))
        step = data.draw(st.sampled_from(sorted(self.history[rank])))
        batch = [repr(digest(row)) for row in self.loaders[rank].batch_at(step)]
        start = self.history[rank][step].row
        assert batch == self.deal.known[rank][start : start + len(batch)]

    @precondition(lambda self: self.mixture is not None)
    @rule(data=st.data())
    def change_weights(self, data: st.DataObject) -> None:
        """Continue with weights that change here or later: no row is lost or repeated, and earlier rows are the same.

        What is held open is taken from the mixture again, so the weights must not change before the end of that.
        """
        old = self.mixture
        assert old is not None
        if not self.deal.is_whole:
            return  # a schedule can't follow a deal
        position = self.ranks * (max(self.reached(old, rank) for rank in range(self.ranks)) + data.draw(LATER))
        changed = old.changed(position, data.draw(weights(list(old.parts))), {})
        states, deal, ats, rows = self.states(), self.deal, self.ats, [at.row for at in self.ats]
        self.mixture, self.dataset = changed, changed.dataset
        self.reopen(Saved(states, self.epoch, deal, ats, self.dataset), self.ranks, self.workers, self.size)
        whole = self.whole(self.epoch)
        assert prefixes(deal.known, rows) == prefixes(whole.known, rows)
        self.stand(self.epoch, whole, self.ats)

    def reached(self, mixture: Mixture, rank: int) -> int:
        """Return the number of a mixture's elements that a rank has read, held ones included, in a whole deal."""
        count = 0

        def counted(element: object) -> object:
            nonlocal count
            count += 1
            return element

        dataset = mixture.over(mixture.mixed.map(counted, name="counted"))
        batches = dataset.batch(self.ranks, merge=list)  # of which each rank has one row
        rows = rank_of(batches, self.epoch, rank, self.ranks)
        assert len(list(islice(rows, self.ats[rank].row))) == self.ats[rank].row
        return count

    def teardown(self) -> None:
        """Close the loaders."""
        close_all(getattr(self, "loaders", []))
        self.scope.close()


TestDealt = DealtMachine.TestCase
TestDealt.settings = settings(fewer(), stateful_step_count=20)

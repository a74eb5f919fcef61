"""Leases, holds, adoptions, drops and releases in any order: no live view changes, and counts are exact."""

import mmap
import os
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.transport import Arena, AttachedArena
from tests.profiles import in_short
from tests.transport.arena.peers import Bytes, bytes_of

PAGE = mmap.PAGESIZE
LIMIT_PAGES = 40
MOST_INVITED = 3


@dataclass
class _View:
    """A live array: of which participant, over which slot, and what each of its bytes must be."""

    participant: int
    slot: int
    value: int
    array: Bytes


@dataclass
class _Model:
    """The expected state, in plain Python; a hold is a view, or a message with the participant that may adopt it."""

    views: list[_View] = field(default_factory=list)
    messages: list[tuple[int, int]] = field(default_factory=list)  # slot, participant
    values: dict[int, int] = field(default_factory=dict)  # by slot: the bytes written last
    pages: dict[int, int] = field(default_factory=dict)  # by slot: those of its last lease
    most_pages: dict[int, int] = field(default_factory=dict)  # by slot: those of its largest lease
    regions: dict[int, int] = field(default_factory=dict)  # by slot: the pages of those leased as a region
    given: int = 0

    def holds(self) -> list[tuple[int, int]]:
        return [(view.slot, view.participant) for view in self.views] + self.messages

    def held(self) -> set[int]:
        return {slot for slot, _ in self.holds()}


class ArenaMachine(RuleBasedStateMachine):
    """An owner and its participants in one process, against the model."""

    def drawn_view(self, data: st.DataObject) -> _View:
        """Return any view; it is drawn by its number, since Hypothesis keeps drawn values."""
        return self.model.views[data.draw(st.integers(0, len(self.model.views) - 1))]

    @initialize(headroom=st.sampled_from([0.0, 0.25, 3.0]))
    def make(self, headroom: float) -> None:
        """An arena without leases."""
        self.arena = Arena(max_bytes=LIMIT_PAGES * PAGE, headroom=headroom)
        self.model = _Model()
        self.attached: dict[int, AttachedArena] = {}
        self.known: dict[int, set[int]] = {}

    def teardown(self) -> None:
        """Drop all, so that nothing is left behind."""
        if hasattr(self, "arena"):
            self.model.views.clear()
            for attached in self.attached.values():
                attached.close()
            self.arena.close()

    @rule(size_bytes=st.integers(1, LIMIT_PAGES * PAGE) | st.integers(0, 6 * PAGE))
    def lend(self, size_bytes: int) -> None:
        """A slot without holds is leased, unless held slots leave no room."""
        model = self.model
        lease = self.arena.lease_nowait(size_bytes)
        pages = max(-(-size_bytes // PAGE), 1)
        self.collected()
        held = model.held()
        if lease is None:
            assert sum(model.most_pages[slot] for slot in held) + pages > LIMIT_PAGES
            return
        assert lease.slot not in held
        assert len(lease) == size_bytes
        assert sum(model.pages[slot] for slot in held) + pages <= LIMIT_PAGES
        model.given += 1
        slot, value = lease.slot, model.given % 251
        array = bytes_of(lease)
        array[...] = value
        model.views.append(_View(0, slot, value, array))
        model.values[slot], model.pages[slot] = value, pages
        model.most_pages[slot] = max(pages, model.most_pages.get(slot, 0))

    @rule(size_bytes=st.integers(1, 6 * PAGE))
    def lend_region(self, size_bytes: int) -> None:
        """A region without other holders is leased; only its lessee counts its pages."""
        model = self.model
        region, lease = self.arena.lease_region(size_bytes)
        assert lease.slot not in model.held()
        assert len(lease) == size_bytes <= len(region)
        assert self.arena.place_of(lease.slot).start_bytes == 0
        model.given += 1
        slot, value = lease.slot, model.given % 251
        array = bytes_of(lease)
        array[...] = value
        model.views.append(_View(0, slot, value, array))
        model.values[slot], model.pages[slot], model.most_pages[slot] = value, 0, 0
        self.collected()
        model.regions[slot] = len(region) // PAGE

    @rule()
    def discard_idle(self) -> None:
        """Slots without holds take no memory; held ones keep theirs."""
        self.arena.discard_idle()
        self.collected()

    def collected(self) -> None:
        """Forget the regions that came back, of which the owner has learned just now."""
        held = self.model.held()
        self.model.regions = {slot: pages for slot, pages in self.model.regions.items() if slot in held}

    @precondition(lambda self: len(self.attached) < MOST_INVITED)
    @rule()
    def invite(self) -> None:
        """A participant gets a number that no other has."""
        participant = self.arena.invite()
        assert participant not in self.attached
        self.attached[participant] = AttachedArena(self.arena.table_descriptor, self.arena.bell_descriptor, participant)
        self.known[participant] = set()

    @precondition(lambda self: self.attached and self.model.views)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Add a hold on any participant's behalf to a slot that is held."""
        slot = self.drawn_view(data).slot
        participant = data.draw(st.sampled_from(sorted(self.attached)))
        self.arena.hold(slot, participant)
        self.model.given += 1
        self.model.messages.append((slot, participant))

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data(), what=st.sampled_from(["adopt", "adopt", "adopt", "drop", "unhold"]))
    def take_message(self, data: st.DataObject, what: str) -> None:
        """A hold that was given is adopted, given back, or taken back."""
        at = data.draw(st.integers(0, len(self.model.messages) - 1))
        slot, participant = self.model.messages.pop(at)
        attached = self.attached[participant]
        match what:
            case "adopt":
                place = self.arena.place_of(slot)
                if place.region not in self.known[participant]:
                    attached.add_region(place.region, self.arena.region_descriptor(place.region))
                    self.known[participant].add(place.region)
                array = bytes_of(attached.adopt(place))
                self.model.views.append(_View(participant, slot, self.model.values[slot], array))
            case "drop":
                attached.drop(slot)
            case _:
                self.arena.unhold(slot, participant)

    @precondition(lambda self: self.model.views)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """The last array over a lease dies."""
        del self.model.views[data.draw(st.integers(0, len(self.model.views) - 1))]

    @precondition(lambda self: self.model.views)
    @rule(data=st.data(), start=st.integers(0, PAGE))
    def narrow(self, data: st.DataObject, start: int) -> None:
        """Only a part of an array stays alive, which keeps all of it."""
        view = self.drawn_view(data)
        view.array = view.array[start:]

    @precondition(lambda self: self.attached)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """A participant is gone with all that it held, and what its leases do afterwards changes nothing."""
        participant = data.draw(st.sampled_from(sorted(self.attached)))
        model = self.model
        holds = sum(holder == participant for _, holder in model.holds())
        assert self.arena.release_participant(participant) == holds
        model.messages = [message for message in model.messages if message[1] != participant]
        model.views = [view for view in model.views if view.participant != participant]
        self.attached.pop(participant).close()

    @invariant()
    def nothing_alive_has_changed(self) -> None:
        """Each live view has the bytes that were written for it."""
        for view in self.model.views:
            assert (view.array == view.value).all()

    @invariant()
    def the_counts_are_exact(self) -> None:
        """Leased minus returned is the number of holds; memory stays within the limit, and its counters are right."""
        holds = self.model.holds()
        counters = self.arena.counters
        assert counters.leased == self.model.given
        assert counters.leased - counters.returned == len(holds)
        for participant, attached in self.attached.items():
            held = sum(holder == participant for _, holder in holds)
            assert self.arena.held_by(participant) == attached.held == held
        descriptors = [self.arena.region_descriptor(region) for region in range(counters.regions)]
        taken_bytes = sum(os.fstat(descriptor).st_blocks * 512 for descriptor in descriptors)
        elsewhere_bytes = sum(self.model.regions.values()) * PAGE
        assert taken_bytes - elsewhere_bytes <= counters.bytes <= LIMIT_PAGES * PAGE


ArenaMachine.TestCase.settings = in_short(10)
TestArenaMachine = ArenaMachine.TestCase

// Rings with one faulty step each, which the model must find. core/ring_protocol.hpp and core/bell.hpp explain the
// right step.
#pragma once

#include <optional>

#include "tests/ring_scenario.hpp"

namespace ring_model {

struct ClaimsAnyGeneration : ModelRing<ClaimsAnyGeneration> {
    using ModelRing::ModelRing;
    bool claim_block(Value slot, Value block, Value, Value worker) {
        ModelWord& own = word(layout_.block(slot, block));
        const Value value = own.load();
        return (value & 3) == RingWords::is_free &&
               own.compare_exchange(value, RingWords::claimed(value >> 24, worker));
    }
};

struct ClaimsByStore : ModelRing<ClaimsByStore> {
    using ModelRing::ModelRing;
    bool claim_block(Value slot, Value block, Value generation, Value worker) {
        ModelWord& own = word(layout_.block(slot, block));
        if (own.load() != RingWords::free(generation)) return false;
        own.store(RingWords::claimed(generation, worker));
        return true;
    }
};

struct ClaimsMergeEarly : ModelRing<ClaimsMergeEarly> {
    using ModelRing::ModelRing;
    std::optional<Claim> claim_in(const Candidate& candidate, Value worker) {
        if (auto claim = Base::claim_in(candidate, worker)) return claim;
        const Value blocks = RingWords::shape_blocks(word(layout_.shape(candidate.slot)).load());
        if (!claim_block(candidate.slot, blocks, candidate.generation, worker)) return std::nullopt;
        return make_claim(candidate.slot, blocks, candidate.generation, candidate.number, true);
    }
};

struct TakesTicketLate : ModelRing<TakesTicketLate> {
    using ModelRing::ModelRing;
    bool claim_round(Value worker, std::optional<Claim>& claim) {
        if (stopped()) return true;
        claim = this->claim(worker);
        if (claim) return true;
        const Value ticket = word(RingLayout::wake).load();
        word(RingLayout::sleepers).add(1);
        sleep(ticket);
        word(RingLayout::sleepers).add(-1);
        return false;
    }
};

struct CountsSleepersEarly : ModelRing<CountsSleepersEarly> {
    using ModelRing::ModelRing;
    void notify(Value count) {
        if (word(RingLayout::sleepers).equals(0)) return;
        word(RingLayout::wake).add(1);
        wake(count);
    }
};

struct AnnouncesBeforeDone : ModelRing<AnnouncesBeforeDone> {
    using ModelRing::ModelRing;
    bool finish(Value slot, Value block, Value worker) {
        const Value generation = RingWords::state_generation(word(layout_.state(slot)).load());
        const bool complete = announce(slot, generation);
        word(layout_.block(slot, block))
            .compare_exchange(RingWords::claimed(generation, worker), RingWords::done(generation));
        return complete;
    }
};

struct ForgetsToWakeForMerge : ModelRing<ForgetsToWakeForMerge> {
    using ModelRing::ModelRing;
    bool announce(Value slot, Value) {
        const bool complete = ready(slot) || drained(slot);
        if (complete) ring_bell();
        return complete;
    }
};

// Readiness counted down, in a word that the ring leaves unused here.
struct CountsDown : ModelRing<CountsDown> {
    using ModelRing::ModelRing;
    void describe(Value slot, Value number, Value blocks, bool merge, Value generation) {
        word(RingLayout::capacity_word).store(blocks + (merge ? 1 : 0));
        Base::describe(slot, number, blocks, merge, generation);
    }
    bool announce(Value, Value) {
        if (word(RingLayout::capacity_word).add(-1) != 1) return false;
        ring_bell();
        return true;
    }
    bool ready(Value) const { return word(RingLayout::capacity_word).load() == 0; }
};

struct ReadyWithoutMerge : ModelRing<ReadyWithoutMerge> {
    using ModelRing::ModelRing;
    bool ready(Value slot) const {
        const Value generation = RingWords::state_generation(word(layout_.state(slot)).load());
        return rows_done(slot, RingWords::shape_blocks(word(layout_.shape(slot)).load()), generation);
    }
};

struct ArmsStateFirst : ModelRing<ArmsStateFirst> {
    using ModelRing::ModelRing;
    void describe(Value slot, Value number, Value blocks, bool merge, Value generation) {
        word(layout_.state(slot)).store(RingWords::state(generation, RingWords::armed));
        for (Value block = 0; block < blocks; ++block)
            word(layout_.block(slot, block)).store(RingWords::free(generation));
        Base::describe(slot, number, blocks, merge, generation);
    }
};

struct CancelsByStore : ModelRing<CancelsByStore> {
    using ModelRing::ModelRing;
    void sweep(Value slot, Value generation) {
        for (Value block = layout_.blocks; block-- > 0;) {
            word(layout_.block(slot, block)).store(RingWords::done(generation));
        }
    }
};

struct SweepsRowsFirst : ModelRing<SweepsRowsFirst> {
    using ModelRing::ModelRing;
    void sweep(Value slot, Value generation) {
        for (Value block = 0; block <= layout_.blocks; ++block) {
            word(layout_.block(slot, block)).compare_exchange(RingWords::free(generation), RingWords::done(generation));
        }
    }
};

struct SweepsBeforeMarking : ModelRing<SweepsBeforeMarking> {
    using ModelRing::ModelRing;
    bool cancel(Value slot) {
        const Value generation = RingWords::state_generation(word(layout_.state(slot)).load());
        sweep(slot, generation);
        word(layout_.state(slot)).store(RingWords::state(generation, RingWords::draining));
        return drained(slot);
    }
};

struct ReleasesIntoDrain : ModelRing<ReleasesIntoDrain> {
    using ModelRing::ModelRing;
    void drain_released(Value, Value) {}
};

struct DrainsReleasedRowsAlone : ModelRing<DrainsReleasedRowsAlone> {
    using ModelRing::ModelRing;
    void drain_released(Value slot, Value generation) {
        if (!word(layout_.state(slot)).equals(RingWords::state(generation, RingWords::draining))) return;
        for (Value row = 0; row < layout_.blocks; ++row) {
            word(layout_.block(slot, row)).compare_exchange(RingWords::free(generation), RingWords::done(generation));
        }
    }
};

struct ReleasesSilently : ModelRing<ReleasesSilently> {
    using ModelRing::ModelRing;
    void wake_everyone() {}
};

// Then a wake-up that a dying sleeper received is lost, and others sleep on.
struct WakesNoSleeperAfterADeath : ModelRing<WakesNoSleeperAfterADeath> {
    using ModelRing::ModelRing;
    void wake_everyone() { bell.ring_always(); }
};

struct UncountsTheDead : ModelRing<UncountsTheDead> {
    using ModelRing::ModelRing;
    Value release_worker(Value worker) {
        word(RingLayout::sleepers).add(-1);
        return Base::release_worker(worker);
    }
};

struct TrustsTheDeadRinger : ModelRing<TrustsTheDeadRinger> {
    using ModelRing::ModelRing;
    void ring_bell_always() { bell.ring(); }
};

struct ReleasesTheLiving : ModelRing<ReleasesTheLiving> {
    using ModelRing::ModelRing;
    static constexpr bool only_seems_dead = true;
};

struct ClearsBellInWrongOrder : ModelRing<ClearsBellInWrongOrder> {
    using ModelRing::ModelRing;
    void clear_bell() { bell.clear_in_wrong_order(); }
};

}  // namespace ring_model

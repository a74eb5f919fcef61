// The slot ring in the model: owner, workers and keeper in segments, what they write, and the rules that must hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/bell.hpp"
#include "core/ring_protocol.hpp"
#include "tests/model_checker.hpp"

namespace ring_model {

using model::Local;
using model::ModelWord;
using model::Operation;
using model::State;
using model::Value;
using penstock::Claim;
using penstock::RingLayout;
using penstock::RingWords;

// The parameters of a run.
struct Setup {
    std::uint32_t slots = 1, batches = 2, blocks = 2;
    bool merge = false;
    std::uint32_t deaths = 1;
    std::uint32_t cancelled = 99;  // the number of the batch that is cancelled instead of awaited
    std::uint32_t workers = 2;
    bool leaves = false;   // worker 1 ends after its first block, without another claim
    bool replaced = true;  // whether another worker starts in the place of one that died
};

enum Event : std::size_t {
    begin_write,  // first: cell, second: number << 1 | merge
    end_write,    // the same
    consume,      // first: slot, second: number; all is written and no participant writes
    give_up,      // first: slot; no participant writes
    await_death,  // result: the dead worker, or `nobody` once the owner has ended
    replace,      // first: the dead worker
    owner_ended
};
constexpr Value nobody = 0xFFFF;

// The words: those of the ring, the bell's two, one per block for its contents and its writer, and the model's own.
struct WordMap {
    RingLayout layout;
    explicit WordMap(const Setup& setup) : layout{setup.slots, setup.blocks} {}
    // The header's unused words are left out, so that a state stays small.
    static std::size_t header(std::size_t index) { return index < 4 ? index : index - 4; }
    std::size_t ring(std::size_t index) const {
        return index < RingLayout::header ? header(index) : index - RingLayout::header + 6;
    }
    std::size_t rung() const { return ring(layout.size()); }
    std::size_t readable() const { return rung() + 1; }
    std::size_t ended() const { return rung() + 2; }
    std::size_t deaths() const { return rung() + 3; }
    std::size_t dead() const { return rung() + 4; }     // 1 + the dead worker that is not yet released
    std::size_t workers() const { return rung() + 5; }  // which worker each participant is, 8 bits each
    // Both together: 1 + number of the batch whose rows it holds in the low half, 1 + participant that writes in the
    // high.
    std::size_t cell(std::size_t slot, std::size_t block) const {
        return rung() + 6 + slot * (layout.blocks + 1) + block;
    }
    std::size_t size() const { return cell(layout.capacity, 0); }
};

class ModelBell : public penstock::BellProtocol<ModelBell> {
  public:
    explicit ModelBell(const WordMap& map) : rung_(map.rung()), readable_(map.readable()), index_(map.readable()) {}
    ModelWord& rung() { return rung_; }
    void set_readable() { readable_.store(1); }
    bool clear_readable() { return readable_.exchange(0) != 0; }
    void wait() { model::script.perform({Operation::await_word, index_}); }
    void clear_in_wrong_order() {
        rung_.store(0);
        readable_.store(0);
    }

  private:
    ModelWord rung_, readable_;
    std::size_t index_;
};

// The ring as it is, over the model's words.
template <class Self>
class ModelRing : public penstock::RingProtocol<Self, ModelWord> {
  public:
    using Base = penstock::RingProtocol<Self, ModelWord>;

    explicit ModelRing(const WordMap& map) : Base(nullptr, map.layout), bell(map) {
        for (std::size_t i = 0; i < map.layout.size(); ++i) words.emplace_back(map.ring(i));
        this->region_ = words.data();
    }
    void sleep(Value) { model::script.perform({Operation::sleep}); }
    void wake(Value count) { model::script.perform({Operation::wake, 0, count}); }
    void ring_bell() { bell.ring(); }
    void ring_bell_always() { bell.ring_always(); }
    void clear_bell() { bell.clear(); }

    static constexpr bool only_seems_dead = false;
    std::vector<ModelWord> words;
    ModelBell bell;
};

struct SoundRing : ModelRing<SoundRing> {
    using ModelRing::ModelRing;
};

// Owner (also the consumer), two workers, keeper. Each segment is what a thread does without remembering more than
// Local.
template <class RingType>
class RingScenario : public model::Scenario {
  public:
    enum Segment : std::uint32_t {
        owner_arm,
        owner_look,
        owner_wait,
        owner_retire,
        owner_cancel,
        owner_drain,
        owner_stop,
        worker_claim,
        worker_write,
        worker_finish,
        keeper_watch,
        keeper_release
    };

    explicit RingScenario(const Setup& setup) : setup_(setup), map_(setup), ring_(map_) {
        if (map_.size() > model::max_words) throw std::logic_error("the model needs more words");
    }

    model::Report check(std::uint64_t limit) {
        State first;
        first.words[map_.deaths()] = setup_.deaths;
        std::vector<Local> participants = {{owner_arm, 0}};
        for (std::uint32_t i = 1; i <= setup_.workers; ++i) {
            participants.push_back({worker_claim, i});
            first.words[map_.workers()] |= Value{i} << (8 * i);
        }
        if (setup_.deaths > 0) participants.push_back({keeper_watch});
        return model::Checker(*this, limit).check(first, participants);
    }

    // The number of workers that died in their sleep in this model.
    std::uint64_t deaths_asleep() const { return deaths_asleep_; }

    // A worker that dies in or around its sleep remains counted; `notify` relies on a count that is never too low.
    void inspect(const State& state) override {
        const auto asleep = static_cast<Value>(std::count(state.asleep.begin(), state.asleep.end(), true));
        const Value counted = state.words[map_.ring(RingLayout::sleepers)];
        if (counted < asleep) throw model::Violation("fewer are counted than sleep");
        if (counted > setup_.workers + setup_.deaths) throw model::Violation("more are counted than ever slept");
    }

    std::size_t sleep_word() const override { return map_.ring(RingLayout::wake); }

    // A worker that is about to sleep only remembers its ticket, which the checker keeps.
    bool forgets(const Operation& operation) const override {
        return operation.kind == Operation::add && operation.index == map_.ring(RingLayout::sleepers) &&
               operation.first == 1;
    }

    std::optional<Local> run(const Local& local) override {
        if (local[0] <= owner_stop) return run_owner(local[0], local[1]);
        if (local[0] <= worker_finish) return run_worker(local);
        return run_keeper(local);
    }

    bool enabled(const State& state, const Operation& event) const override {
        if (event.index != await_death) return true;
        return state.words[map_.dead()] != 0 || state.words[map_.ended()] != 0;
    }

    bool may_die(const State& state, std::size_t participant) const override {
        return participant >= 1 && participant <= setup_.workers && state.words[map_.deaths()] > 0 &&
               state.words[map_.dead()] == 0;
    }

    void die(State& state, std::size_t participant) override {
        state.words[map_.deaths()] -= 1;
        state.words[map_.dead()] = 1 + worker_of(state, participant);
        if (RingType::only_seems_dead) return;
        deaths_asleep_ += state.asleep[participant] ? 1 : 0;
        state.places[participant] = model::gone;
        state.asleep[participant] = false;
        stop_writing(state, participant);
    }

    Value apply(State& state, std::size_t participant, const Operation& event) override {
        switch (event.index) {
            case begin_write:
                return begin(state, participant, event.first, event.second);
            case end_write:
                return end(state, participant, event.first, event.second);
            case consume:
                check_written(state, event.first, event.second);
                return check_quiet(state, event.first);
            case give_up:
                return check_quiet(state, event.first);
            case await_death:
                return state.words[map_.dead()] != 0 ? state.words[map_.dead()] - 1 : nobody;
            case replace:
                return start_another(state, event.first);
            default:
                state.words[map_.ended()] = 1;
                return 0;
        }
    }

  private:
    static Value perform(Event event, Value first = 0, Value second = 0) {
        return model::script.perform({Operation::event, event, first, second});
    }

    std::uint32_t slot_of(std::uint32_t number) const { return number % setup_.slots; }

    // At first every slot is armed; then each when its batch has been taken.
    Local after_arming(std::uint32_t number) const {
        const std::uint32_t ahead = std::min(setup_.slots, setup_.batches);
        return number + 1 < ahead ? Local{owner_arm, number + 1} : arrived(number + 1 - ahead);
    }
    Local arrived(std::uint32_t number) const {
        if (number >= setup_.batches) return {owner_stop};
        return {number == setup_.cancelled ? std::uint32_t{owner_cancel} : std::uint32_t{owner_look}, number};
    }

    std::optional<Local> run_owner(std::uint32_t segment, std::uint32_t number) {
        const std::uint32_t slot = slot_of(number);
        switch (segment) {
            case owner_arm:
                ring_.arm(slot, number, setup_.blocks, setup_.merge);
                return after_arming(number);
            case owner_look:
                return Local{ring_.ready(slot) ? owner_retire : owner_wait, number};
            case owner_wait:  // clear, look, wait: SlotRing.wait_ready
                ring_.clear_bell();
                if (ring_.ready(slot)) return Local{owner_retire, number};
                ring_.bell.wait();
                return Local{owner_look, number};
            case owner_cancel:
                return Local{ring_.cancel(slot) ? owner_retire : owner_drain, number};
            case owner_drain:
                ring_.clear_bell();
                if (ring_.drained(slot)) return Local{owner_retire, number};
                ring_.bell.wait();
                return Local{owner_drain, number};
            case owner_retire:
                perform(number == setup_.cancelled ? give_up : consume, slot, number);
                ring_.retire(slot);
                return number + setup_.slots < setup_.batches ? Local{owner_arm, number + setup_.slots}
                                                              : arrived(number + 1);
            default:
                ring_.stop();
                perform(owner_ended);
                return std::nullopt;
        }
    }

    std::optional<Local> run_worker(const Local& local) {
        const std::uint32_t worker = local[1];
        if (local[0] == worker_claim) {
            std::optional<Claim> claim;
            if (!ring_.claim_round(worker, claim)) return local;
            if (!claim) return std::nullopt;
            return Local{
                worker_write,          worker, claim->slot, claim->block, static_cast<std::uint32_t>(claim->number),
                claim->merge ? 1U : 0U};
        }
        if (local[0] == worker_write) {
            const Value cell = map_.cell(local[2], local[3]);
            perform(begin_write, cell, Value{local[4]} << 1 | local[5]);
            perform(end_write, cell, Value{local[4]} << 1 | local[5]);
            return Local{worker_finish, worker, local[2], local[3]};
        }
        ring_.finish(local[2], local[3], worker);
        if (setup_.leaves && worker == 1) return std::nullopt;
        return Local{worker_claim, worker};
    }

    std::optional<Local> run_keeper(const Local& local) {
        if (local[0] == keeper_watch) {
            const Value dead = perform(await_death);
            if (dead == nobody) return std::nullopt;
            return Local{keeper_release, static_cast<std::uint32_t>(dead)};
        }
        ring_.release_worker(local[1]);
        perform(replace, local[1]);
        return Local{keeper_watch};
    }

    static Value content(Value cell) { return cell & 0xFFFFFFFF; }
    static Value writer(Value cell) { return cell >> 32; }

    Value worker_of(const State& state, std::size_t participant) const {
        return state.words[map_.workers()] >> (8 * participant) & 0xFF;
    }

    std::size_t participant_of(const State& state, Value worker) const {
        std::size_t participant = 1;
        while (worker_of(state, participant) != worker) ++participant;
        return participant;
    }

    void stop_writing(State& state, std::size_t participant) const {
        for (std::size_t i = map_.cell(0, 0); i < map_.size(); ++i) {
            if (writer(state.words[i]) == 1 + participant) state.words[i] = 0;  // half written
        }
    }

    Value begin(State& state, std::size_t participant, Value cell, Value what) const {
        Value& word = state.words[cell];
        if (writer(word) != 0) throw model::Violation("two writers on one block");
        if ((what & 1) != 0) {
            for (Value row = cell - setup_.blocks; row < cell; ++row) {
                if (state.words[row] != 1 + (what >> 1)) throw model::Violation("merged before all rows were written");
            }
        }
        word = Value{1 + participant} << 32;
        return 0;
    }

    Value end(State& state, std::size_t participant, Value cell, Value what) const {
        if (writer(state.words[cell]) != 1 + participant)
            throw model::Violation("another participant wrote in the meantime");
        state.words[cell] = 1 + (what >> 1);
        return 0;
    }

    void check_written(const State& state, Value slot, Value number) const {
        for (std::uint32_t block = 0; block < setup_.blocks + (setup_.merge ? 1 : 0); ++block) {
            if (state.words[map_.cell(slot, block)] != 1 + number)
                throw model::Violation("consumed what wasn't written");
        }
    }

    Value check_quiet(const State& state, Value slot) const {
        for (std::uint32_t block = 0; block <= setup_.blocks; ++block) {
            if (writer(state.words[map_.cell(slot, block)]) != 0) throw model::Violation("retired under a writer");
        }
        return 0;
    }

    // Each worker's successor has a new name.
    Value start_another(State& state, Value worker) {
        state.words[map_.dead()] = 0;
        if (RingType::only_seems_dead || !setup_.replaced) return 0;
        const std::size_t participant = participant_of(state, worker);
        const Value name = worker + 16;
        state.words[map_.workers()] += Value{16} << (8 * participant);
        started.emplace_back(participant, Local{worker_claim, static_cast<std::uint32_t>(name)});
        return 0;
    }

    Setup setup_;
    WordMap map_;
    RingType ring_;
    std::uint64_t deaths_asleep_ = 0;
};

}  // namespace ring_model

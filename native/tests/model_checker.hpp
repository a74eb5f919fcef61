// A small explicit-state model checker for the participants of model.hpp.
//
// A state is the words plus every participant's place; the checker explores all states reachable by doing any
// participant's next operation: every interleaving of whole operations, with a death possible between any two. It
// reports the first operation that violates a rule, and every state from which the end can't be reached without
// another death (deadlock or livelock).
//
// The word that sleepers wait on is not counted up: what a sleeper compares is whether it changed since it was read, so
// a state holds one bit for that a participant.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/model.hpp"

namespace model {

struct Report {
    std::uint64_t states = 0, steps = 0;
    std::string violation;  // empty: none
    std::vector<std::string> trace;
};

class Checker {
  public:
    Checker(Scenario& scenario, std::uint64_t limit) : scenario_(scenario), limit_(limit) {}

    Report check(const State& words, const std::vector<Local>& participants) {
        State first = words;
        first.places.fill(gone);
        for (std::size_t i = 0; i < participants.size(); ++i) first.places[i] = enter(participants[i]);
        add_state(first, 0, 0, 0, false);
        for (std::uint64_t current = 0; current < states_.size() && report_.violation.empty(); ++current) {
            const State state = frontier_.front();
            frontier_.pop_front();
            expand(state, static_cast<std::uint32_t>(current));
            if (states_.size() > limit_) report_.violation = "the model is larger than its limit: nothing is proved";
        }
        if (report_.violation.empty()) check_progress();
        report_.states = states_.size();
        report_.steps = edges_.size();
        return report_;
    }

  private:
    struct Place {
        Local segment;
        std::vector<Value> results;
        Operation next;
        std::vector<std::pair<Value, std::uint32_t>> after;  // result of `next` -> place
    };
    struct Seen {
        std::uint32_t parent;
        std::uint32_t place;  // of the participant that moved
        std::uint8_t mover;   // gets 100 added for a death
    };
    struct Edge {
        std::uint32_t from, to;
        bool death;
    };
    struct Fingerprint {
        std::uint64_t high, low;
        bool operator==(const Fingerprint&) const = default;
    };
    // Open addressing: half of the time is spent in this table.
    class FingerprintTable {
      public:
        // The id of the state, and whether it is new; a new one gets `id`.
        std::pair<std::uint32_t, bool> find_or_add(const Fingerprint& print, std::uint32_t id) {
            if (2 * (count_ + 1) > entries_.size()) grow();
            Entry& entry = find(print);
            if (entry.id != gone) return {entry.id, false};
            entry = {print, id};
            count_ += 1;
            return {id, true};
        }

      private:
        struct Entry {
            Fingerprint print{};
            std::uint32_t id = gone;
        };
        Entry& find(const Fingerprint& print) {
            std::size_t at = print.low & (entries_.size() - 1);
            while (entries_[at].id != gone && !(entries_[at].print == print)) at = (at + 1) & (entries_.size() - 1);
            return entries_[at];
        }
        void grow() {
            std::vector<Entry> old(std::max<std::size_t>(1024, 2 * entries_.size()));
            old.swap(entries_);
            for (const Entry& entry : old) {
                if (entry.id != gone) find(entry.print) = entry;
            }
        }
        std::vector<Entry> entries_;
        std::size_t count_ = 0;
    };

    // The place at the start of a segment.
    std::uint32_t enter(const Local& local) {
        const auto known = segments_.find(local);
        if (known != segments_.end()) return known->second;
        const std::uint32_t place = find_place(local, {});
        segments_[local] = place;
        return place;
    }

    // Runs a segment on the results so far, up to its next operation.
    std::uint32_t find_place(const Local& segment, std::vector<Value> results) {
        script.results = &results;
        script.position = 0;
        try {
            const std::optional<Local> next = scenario_.run(segment);
            return next ? enter(*next) : gone;
        } catch (const Pending& pending) {
            if (scenario_.forgets(pending.operation)) {
                const auto [known, fresh] = forgetful_.try_emplace(segment, static_cast<std::uint32_t>(places_.size()));
                if (!fresh) return known->second;
            }
            places_.push_back({segment, std::move(results), pending.operation, {}});
            return static_cast<std::uint32_t>(places_.size() - 1);
        }
    }

    std::uint32_t advance(std::uint32_t place, Value result) {
        for (const auto& [known, next] : places_[place].after) {
            if (known == result) return next;
        }
        std::vector<Value> results = places_[place].results;
        results.push_back(result);
        const std::uint32_t next = find_place(places_[place].segment, std::move(results));
        places_[place].after.emplace_back(result, next);
        return next;
    }

    void expand(const State& state, std::uint32_t id) {
        bool ended = true;
        for (std::size_t participant = 0; participant < max_participants; ++participant) {
            if (state.places[participant] == gone) continue;
            ended = false;
            try {
                if (!state.asleep[participant]) perform(state, id, participant);
                if (scenario_.may_die(state, participant)) {
                    State next = state;
                    scenario_.die(next, participant);
                    add_state(next, id, state.places[participant], static_cast<std::uint8_t>(100 + participant), true);
                }
            } catch (const std::exception& broken) {  // a rule of the scenario, or an assertion of the code itself
                report_.violation = broken.what();
                trace(id, state.places[participant], participant);
                return;
            }
        }
        if (ended) ends_.push_back(id);
    }

    void perform(const State& state, std::uint32_t id, std::size_t participant) {
        const Operation operation = places_[state.places[participant]].next;
        State next = state;
        Value result = 0;
        if (operation.kind < Operation::sleep && operation.index == scenario_.sleep_word()) {
            touch_sleep_word(next, participant, operation);
            move_on(next, participant, 0);
            return add_state(next, id, state.places[participant], participant, false);
        }
        Value& word = next.words[std::min(operation.index, max_words - 1)];
        switch (operation.kind) {
            case Operation::load:
                result = word;
                break;
            case Operation::equals:
                result = word == operation.first ? 1 : 0;
                break;
            case Operation::store:
                word = operation.first;
                break;
            case Operation::exchange:
                result = std::exchange(word, operation.first);
                break;
            case Operation::add:
                result = std::exchange(word, word + operation.first);
                break;
            case Operation::compare_exchange:
                result = word == operation.first ? 1 : 0;
                if (result != 0) word = operation.second;
                break;
            case Operation::sleep:
                next.asleep[participant] = std::exchange(next.fresh[participant], false);
                if (next.asleep[participant]) return add_state(next, id, state.places[participant], participant, false);
                break;
            case Operation::wake:
                return wake(state, id, participant, operation.first);
            case Operation::await_word:
                if (word == 0) return;
                break;
            case Operation::event:
                if (!scenario_.enabled(state, operation)) return;
                result = scenario_.apply(next, participant, operation);
                for (const auto& [started, local] : scenario_.started) next.places[started] = enter(local);
                scenario_.started.clear();
                break;
        }
        move_on(next, participant, result);
        add_state(next, id, state.places[participant], participant, false);
    }

    // No segment passes a value of the sleep word to the next.
    void move_on(State& state, std::size_t participant, Value result) {
        const std::uint32_t from = state.places[participant];
        const std::uint32_t to = state.places[participant] = advance(from, result);
        if (to == gone || places_[to].segment != places_[from].segment) state.fresh[participant] = false;
    }

    static void touch_sleep_word(State& state, std::size_t participant, const Operation& operation) {
        if (operation.kind == Operation::load) {
            state.fresh[participant] = true;
        } else {
            state.fresh.fill(false);
        }
    }

    // Every choice of `count` sleepers is one step.
    void wake(const State& state, std::uint32_t id, std::size_t participant, Value count) {
        const auto sleepers = static_cast<Value>(std::count(state.asleep.begin(), state.asleep.end(), true));
        const auto woken = static_cast<int>(std::min(count, sleepers));
        for (unsigned choice = 0; choice < 1U << max_participants; ++choice) {
            if (__builtin_popcount(choice) != woken) continue;
            State next = state;
            bool possible = true;
            for (std::size_t sleeper = 0; sleeper < max_participants; ++sleeper) {
                if ((choice >> sleeper & 1) == 0) continue;
                possible = possible && state.asleep[sleeper];
                if (!possible) break;
                next.asleep[sleeper] = false;
                move_on(next, sleeper, 0);
            }
            if (!possible) continue;
            move_on(next, participant, 0);
            add_state(next, id, state.places[participant], participant, false);
        }
    }

    void add_state(const State& state, std::uint32_t from, std::uint32_t place, std::size_t mover, bool death) {
        const Fingerprint print = fingerprint(state);
        const auto [known, is_new] = ids_.find_or_add(print, static_cast<std::uint32_t>(states_.size()));
        if (is_new) {
            scenario_.inspect(state);
            states_.push_back({from, place, static_cast<std::uint8_t>(mover)});
            frontier_.push_back(state);
        }
        edges_.push_back({from, known, death});
    }

    // 128 bits: with a million states, a chance of 1e-26 that one is taken for another.
    static Fingerprint fingerprint(const State& state) {
        Fingerprint print{0x9E3779B97F4A7C15, 0xD1B54A32D192ED03};
        const auto fold = [&print](Value value) {
            print.low = (print.low ^ value) * 0xBF58476D1CE4E5B9;
            print.low ^= print.low >> 29;
            print.high = (print.high + value) * 0x94D049BB133111EB;
            print.high ^= print.high >> 32;
        };
        for (const Value word : state.words) fold(word);
        for (std::size_t i = 0; i < max_participants; ++i) {
            fold(Value{state.places[i]} << 2 | (state.asleep[i] ? 2U : 0U) | (state.fresh[i] ? 1U : 0U));
        }
        return print;
    }

    // From every state the end can be reached without another death.
    void check_progress() {
        std::vector<std::uint32_t> start(states_.size() + 1, 0);
        for (const Edge& edge : edges_) start[edge.to + 1] += edge.death ? 0 : 1;
        for (std::size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
        std::vector<std::uint32_t> before(start.back()), filled(start.begin(), start.end() - 1);
        for (const Edge& edge : edges_) {
            if (!edge.death) before[filled[edge.to]++] = edge.from;
        }
        std::vector<bool> finishes(states_.size(), false);
        std::vector<std::uint32_t> open = ends_;
        for (const std::uint32_t id : ends_) finishes[id] = true;
        while (!open.empty()) {
            const std::uint32_t id = open.back();
            open.pop_back();
            for (std::uint32_t i = start[id]; i < start[id + 1]; ++i) {
                if (finishes[before[i]]) continue;
                finishes[before[i]] = true;
                open.push_back(before[i]);
            }
        }
        const auto stuck = std::find(finishes.begin(), finishes.end(), false);
        if (stuck == finishes.end()) return;
        report_.violation = "stuck: the end can't be reached any more";
        trace(static_cast<std::uint32_t>(stuck - finishes.begin()), gone, 0);
    }

    void trace(std::uint32_t id, std::uint32_t place, std::size_t participant) {
        if (place != gone) report_.trace.push_back(describe(participant, place));
        for (; id != 0; id = states_[id].parent)
            report_.trace.push_back(describe(states_[id].mover, states_[id].place));
        std::reverse(report_.trace.begin(), report_.trace.end());
    }

    std::string describe(std::size_t mover, std::uint32_t place) const {
        static const char* const names[] = {"load", "equals", "store", "exchange", "compare_exchange",
                                            "add",  "sleep",  "wake",  "await",    "event"};
        if (mover >= 100) return "participant " + std::to_string(mover - 100) + " dies";
        const Operation& operation = places_[place].next;
        char text[160];
        std::snprintf(text, sizeof text, "participant %zu: %s word %zu (0x%llx, 0x%llx)", mover, names[operation.kind],
                      operation.index, static_cast<unsigned long long>(operation.first),
                      static_cast<unsigned long long>(operation.second));
        return text;
    }

    Scenario& scenario_;
    std::uint64_t limit_;
    Report report_;
    std::vector<Place> places_;
    std::map<Local, std::uint32_t> segments_, forgetful_;
    FingerprintTable ids_;
    std::vector<Seen> states_;
    std::deque<State> frontier_;
    std::vector<Edge> edges_;
    std::vector<std::uint32_t> ends_;
};

}  // namespace model

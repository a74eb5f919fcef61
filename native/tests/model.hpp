// Code that shares 64-bit words, stopped at every operation on one, for model_checker.hpp.
//
// The problem: to explore all interleavings of the real code, not of a description of it, so a run must stop before
// each operation on a word and continue from there in many ways.
//
// The solution: the code under test is compiled over `ModelWord` instead of an atomic. A participant's code becomes an
// automaton: it runs again and again on a script, and each operation on a word takes its result from the script. At the
// end of the script an exception, which names the next operation, ends the run. So a participant's place is (segment,
// results so far).
//
// Rejected: coroutines or copied stacks, one for each state. They need much memory, and no sanitizer follows them. A
// model in another language (TLA+, Promela): it would have to be kept equal to the code by hand.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace model {

using Value = std::uint64_t;

struct Operation {
    enum Kind : std::uint8_t {
        load,
        equals,
        store,
        exchange,
        compare_exchange,
        add,
        sleep,
        wake,        // first: how many
        await_word,  // until word `index` is not 0
        event        // an event of the scenario, with the number `index`
    };
    Kind kind = load;
    std::size_t index = 0;
    Value first = 0, second = 0;
    bool operator==(const Operation&) const = default;
};

// Leaves a run at the end of its script.
struct Pending {
    Operation operation;
};

// A scenario throws this when a rule is violated.
struct Violation : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The run in progress: results are taken from `script`.
struct Script {
    const std::vector<Value>* results = nullptr;
    std::size_t position = 0;

    Value perform(const Operation& operation) {
        if (position == results->size()) throw Pending{operation};
        return (*results)[position++];
    }
};

inline Script script;

// A word of the model, named by its index; it holds no value itself.
class ModelWord {
  public:
    ModelWord() = default;
    explicit ModelWord(std::size_t index) : index_(index) {}
    Value load() const { return script.perform({Operation::load, index_}); }
    bool equals(Value value) const { return script.perform({Operation::equals, index_, value}) != 0; }
    void store(Value value) { script.perform({Operation::store, index_, value}); }
    Value exchange(Value value) { return script.perform({Operation::exchange, index_, value}); }
    Value add(std::int64_t delta) { return script.perform({Operation::add, index_, static_cast<Value>(delta)}); }
    bool compare_exchange(Value expected, Value desired) {
        return script.perform({Operation::compare_exchange, index_, expected, desired}) != 0;
    }

  private:
    std::size_t index_ = 0;
};

constexpr std::size_t max_words = 48;
constexpr std::size_t max_participants = 4;
constexpr std::uint32_t gone = 0xFFFFFFFF;  // the place of a participant that has ended or died

struct State {
    std::array<Value, max_words> words{};
    std::array<std::uint32_t, max_participants> places{};
    std::array<bool, max_participants> asleep{};
    std::array<bool, max_participants> fresh{};  // the sleep word is as this participant last read it
};

// The place of a participant between two segments of its code: all that it remembers.
using Local = std::array<std::uint32_t, 8>;

// A scenario: the code of each participant in segments, and the meaning of events.
struct Scenario {
    virtual ~Scenario() = default;
    // Runs one segment of a participant, and returns its next segment; nothing when it has ended.
    virtual std::optional<Local> run(const Local& local) = 0;
    virtual std::size_t sleep_word() const = 0;
    // Whether the code, from this operation on, doesn't use the values any more that it read earlier in this segment.
    virtual bool forgets(const Operation&) const { return false; }
    // Whether the event can happen now; its effect and its result.
    virtual bool enabled(const State&, const Operation&) const { return true; }
    virtual Value apply(State&, std::size_t participant, const Operation&) = 0;
    // Whether the participant may die here, and what its death does.
    virtual bool may_die(const State&, std::size_t) const { return false; }
    virtual void die(State& state, std::size_t participant) { state.places[participant] = gone; }
    // Checks each state once, and throws the rule that it violates.
    virtual void inspect(const State&) {}

    // Filled by an event that starts a new participant in the place of one that died.
    std::vector<std::pair<std::size_t, Local>> started;
};

}  // namespace model

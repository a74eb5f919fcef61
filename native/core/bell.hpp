// A bell: a file descriptor that becomes readable when it is rung.
//
// Guarantees:
//   - No ring is lost if the waiter clears, then checks its condition, then waits: the check after the clear that
//     removed a ring sees all that was true before that ring.
//   - Any number of rings before a clear cost one write to the descriptor.
//   - ring() never blocks, and may be called from any thread, with or without the GIL.
//   - If its word is in shared memory, every process that has the descriptor rings the same bell. A process that dies
//     inside ring() may suppress later rings, until another one calls ring_always().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/atomic_word.hpp"

namespace penstock {

// The order of the two facts "rung" (a word) and "readable" (the descriptor), which the model test explores.
// `Self` gives rung(), the word, set_readable() and clear_readable().
template <class Self>
class BellProtocol {
  public:
    void ring() {
        if (self().rung().exchange(1) == 0) self().set_readable();
    }

    // For the case that a process died between the two steps of ring().
    void ring_always() { self().set_readable(); }

    // In this order: if the word were cleared first, a ring in between would be cleared from the descriptor, but its
    // word would suppress all later rings.
    // Returns whether it was readable: then the caller must check its condition, or ring other waiters.
    bool clear() {
        const bool was_readable = self().clear_readable();
        self().rung().store(0);
        return was_readable;
    }

  private:
    Self& self() { return static_cast<Self&>(*this); }
};

class Bell : public BellProtocol<Bell> {
  public:
    using Deadline = std::optional<std::chrono::steady_clock::time_point>;
    enum class Outcome { rung, timed_out, interrupted };

    // A new bell, with the word at `rung`, which keeps it alive, or one of its own.
    explicit Bell(std::shared_ptr<AtomicWord> rung = std::make_shared<AtomicWord>());
    // The bell of another process, by its word and its descriptor, which is copied. Linux only.
    // std::invalid_argument if the descriptor belongs to no bell.
    Bell(std::shared_ptr<AtomicWord> rung, int descriptor);
    ~Bell();
    Bell(const Bell&) = delete;
    Bell& operator=(const Bell&) = delete;

    int fileno() const { return read_descriptor_; }

    // Waits until the descriptor is readable or its other end is closed, the deadline passes, a signal handler ran in
    // this thread, or the descriptor `interrupt` becomes readable (-1: none).
    static Outcome wait_readable(int descriptor, const Deadline& deadline, int interrupt = -1);
    // Waits until the bell is rung, and does not clear it.
    Outcome wait(const Deadline& deadline, int interrupt = -1) const {
        return wait_readable(read_descriptor_, deadline, interrupt);
    }

    AtomicWord& rung() { return *rung_; }
    void set_readable();
    bool clear_readable();

  private:
    std::shared_ptr<AtomicWord> rung_;
    int read_descriptor_ = -1;
    int write_descriptor_ = -1;  // equal to read_descriptor_ if one descriptor does both
};

// A pipe with non-blocking ends that are closed in child programs.
class Pipe {
  public:
    Pipe();
    ~Pipe();
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;

    int read_end() const { return ends_[0]; }
    int write_end() const { return ends_[1]; }

  private:
    int ends_[2] = {-1, -1};
};

}  // namespace penstock

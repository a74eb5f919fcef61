// Threads that run jobs, and mailboxes into which they put what has ended: each is read by one thread at its leisure.
//
// Guarantees:
//   - A job that was submitted comes to its mailbox exactly once, unless withdraw() said that it was not started. Jobs
//     start in the order they were submitted; they end in any.
//   - Nobody but who reads a mailbox, withdraws, or calls release_retired() ever drops a job: the pool's threads don't,
//     not even where pool, mailbox and reader are gone. Jobs may hold what only certain threads may touch.
//   - The pool's threads block every signal but those of their own faults.
//   - Nothing waits but join(). A pool that is dropped without join() leaves its threads to end after the job they run.
//   - A forked child has none of the threads: whatever it asks of its copy is refused (std::logic_error), and dropping
//     the copy leaves it as it is. here() tells.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/bell.hpp"
#include "core/jobs.hpp"

namespace penstock {

// Why a job gave no result, as a value: exceptions stay on the thread that threw them.
struct Failure {
    enum class Kind { none, withdrawn, error };
    Kind kind = Kind::none;
    PythonError error = PythonError::runtime_error;
    int error_number = 0;  // an errno, for an OSError
    std::string text;
    std::string file;
};

class Mailbox;
class PoolState;

// A job on its way from who submits it to a mailbox.
class Submission {
  public:
    Submission(std::shared_ptr<Work> work_, std::uint64_t ticket_, std::shared_ptr<Mailbox> mailbox_)
        : work(std::move(work_)), ticket(ticket_), mailbox(std::move(mailbox_)) {}

    std::shared_ptr<Work> work;  // null: it only tells that the pool has ended
    std::uint64_t ticket;        // the submitter's name for it
    Failure failure;

  private:
    friend class Mailbox;
    friend class Pool;
    friend class PoolState;
    friend class Letters;

    enum class State { queued, started, withdrawn };
    State state = State::queued;       // under the pool's mutex
    std::shared_ptr<Mailbox> mailbox;  // until it is delivered
    Submission* next = nullptr;
    std::shared_ptr<Submission> self;  // keeps it while it lies among letters
};

// Submissions put down by any thread and taken all at once by another; without a lock, which a fork could leave held.
class Letters {
  public:
    ~Letters() { take(); }
    void put(std::shared_ptr<Submission> submission) noexcept;
    std::vector<std::shared_ptr<Submission>> take();  // in the order they were put down

  private:
    std::atomic<Submission*> last_{nullptr};
};

// Where submissions come to when they have ended. The descriptor is readable from then until they are taken.
class Mailbox {
  public:
    Mailbox();
    ~Mailbox();  // leaves to release_retired() what nobody took
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;

    int fileno() const { return bell_.fileno(); }
    bool here() const;
    std::vector<std::shared_ptr<Submission>> take();
    // Called by pools, on any thread.
    void deliver(std::shared_ptr<Submission> submission) noexcept;

  private:
    Bell bell_;
    Letters letters_;
    std::uint64_t generation_;
};

class Pool {
  public:
    // Throws std::system_error where the system has not so many threads to give; then none is left.
    explicit Pool(std::size_t num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    bool here() const;
    // Throws std::logic_error after end().
    std::shared_ptr<Submission> submit(std::shared_ptr<Work> work, std::uint64_t ticket,
                                       std::shared_ptr<Mailbox> mailbox);
    // Whether the job had not been started: then it never will be, comes to no mailbox, and is dropped here.
    bool withdraw(Submission& submission);
    // All that were not started come to their mailboxes as withdrawn.
    void withdraw_all();
    // Nothing is submitted from now on. When all jobs have ended, a submission without work comes to `mailbox`.
    void end(std::uint64_t ticket, std::shared_ptr<Mailbox> mailbox);
    // How long ago a job ended, or the pool was made.
    std::chrono::nanoseconds since_last_end() const;
    // Waits until the threads have ended, after end().
    void join();

  private:
    void require_here() const;

    std::shared_ptr<PoolState> state_;
    std::vector<std::thread> threads_;
    std::uint64_t generation_;
};

// Drops the jobs that nobody else will; to be called now and then by a thread that may drop what they hold.
void release_retired();

}  // namespace penstock

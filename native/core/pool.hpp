// A pool of threads that run jobs, and mailboxes for the jobs that have ended; one thread reads a mailbox at any time.
//
// Guarantees:
//   - A submitted job arrives in its mailbox exactly once, unless withdraw() returned true. Jobs start in the order of
//     submission, and end in any order.
//   - Only a thread that reads a mailbox, withdraws, or calls release_retired() drops a job. The pool's threads never
//     do, even if pool, mailbox and reader no longer exist: a job may hold objects that only certain threads may touch.
//   - The pool's threads block every signal but those of their own faults.
//   - Only join() waits. If a pool is dropped without join(), its threads end after their current job.
//   - A forked child has none of the threads: its copy of the pool throws std::logic_error at each call, and dropping
//     the copy changes nothing. See here().
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

// A job between its submission and its mailbox.
class Submission {
  public:
    Submission(std::shared_ptr<Work> work_, std::uint64_t ticket_, std::shared_ptr<Mailbox> mailbox_)
        : work(std::move(work_)), ticket(ticket_), mailbox(std::move(mailbox_)) {}

    std::shared_ptr<Work> work;  // null: it only reports the end of the pool
    std::uint64_t ticket;        // the submitter's number for it
    Failure failure;

  private:
    friend class Mailbox;
    friend class Pool;
    friend class PoolState;
    friend class SubmissionStack;

    enum class State { queued, started, withdrawn };
    State state = State::queued;       // under the pool's mutex
    std::shared_ptr<Mailbox> mailbox;  // until it is delivered
    Submission* next = nullptr;
    std::shared_ptr<Submission> self;  // keeps it alive while it is in a SubmissionStack
};

// A stack of submissions that any thread pushes to and another one empties as a whole. It has no lock, since a fork
// could leave one locked.
class SubmissionStack {
  public:
    ~SubmissionStack() { take(); }
    void put(std::shared_ptr<Submission> submission) noexcept;
    std::vector<std::shared_ptr<Submission>> take();  // in the order of put()

  private:
    std::atomic<Submission*> last_{nullptr};
};

// The submissions that have ended. The descriptor is readable until they are taken.
class Mailbox {
  public:
    Mailbox();
    ~Mailbox();  // leaves jobs that were not taken to release_retired()
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;

    int fileno() const { return bell_.fileno(); }
    bool here() const;
    std::vector<std::shared_ptr<Submission>> take();
    // Called by pools, on any thread.
    void deliver(std::shared_ptr<Submission> submission) noexcept;

  private:
    Bell bell_;
    SubmissionStack delivered_;
    std::uint64_t generation_;
};

class Pool {
  public:
    // Throws std::system_error if the system refuses a thread; then those that were started have ended.
    explicit Pool(std::size_t num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    bool here() const;
    // Throws std::logic_error after end().
    std::shared_ptr<Submission> submit(std::shared_ptr<Work> work, std::uint64_t ticket,
                                       std::shared_ptr<Mailbox> mailbox);
    // Whether the job had not started: then it never starts, arrives in no mailbox, and is dropped here.
    bool withdraw(Submission& submission);
    // Jobs that have not started arrive in their mailboxes as withdrawn.
    void withdraw_all();
    // No job may be submitted from now on. After all jobs have ended, a submission without work arrives in `mailbox`.
    void end(std::uint64_t ticket, std::shared_ptr<Mailbox> mailbox);
    // The time since a job ended, or the pool was created.
    std::chrono::nanoseconds since_last_end() const;
    // Waits until the threads have ended, after end().
    void join();

  private:
    void require_here() const;

    std::shared_ptr<PoolState> state_;
    std::vector<std::thread> threads_;
    std::uint64_t generation_;
};

// Drops the jobs of dropped pools and mailboxes; called from time to time by a thread that may drop their objects.
void release_retired();

}  // namespace penstock

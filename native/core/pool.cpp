#include "core/pool.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/arena_table.hpp"  // fork_generation

namespace penstock {

namespace {

// Never destroyed: a pool's thread may run until the process is gone.
SubmissionStack& retired() {
    static auto* const stack = new SubmissionStack();
    return *stack;
}

void retire(std::shared_ptr<Submission> submission) noexcept {
    if (submission->work != nullptr) retired().put(std::move(submission));
}

Failure attempt(Work& work) noexcept {
    using Kind = Failure::Kind;
    try {
        work.run();
        return {};
    } catch (const FileError& error) {
        return {Kind::error, PythonError::os_error, error.code().value(), error.text(), error.file()};
    } catch (const DataError& error) {
        return {Kind::error, PythonError::value_error, 0, error.what(), {}};
    } catch (...) {
        Failure failure;
        failure.kind = Kind::error;
        detail::describe_exception([&](PythonError error, int error_number, const char* text) {
            failure.error = error;
            failure.error_number = error_number;
            try {
                failure.text = text;
            } catch (...) {  // no memory for the text: only the kind is reported
            }
        });
        return failure;
    }
}

// While it exists, this thread blocks all signals but those of its own faults; threads that it starts do so for ever.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t blocked;
        ::sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
            ::sigdelset(&blocked, fault);
        ::pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

  private:
    sigset_t before_;
};

void name_this_thread() {
#ifdef __linux__
    ::pthread_setname_np(::pthread_self(), "penstock-pool");
#elif defined(__APPLE__)
    ::pthread_setname_np("penstock-pool");
#endif
}

}  // namespace

void SubmissionStack::put(std::shared_ptr<Submission> submission) noexcept {
    Submission* const top = submission.get();
    top->self = std::move(submission);
    top->next = last_.load(std::memory_order_relaxed);
    while (!last_.compare_exchange_weak(top->next, top, std::memory_order_release, std::memory_order_relaxed)) {
    }
}

std::vector<std::shared_ptr<Submission>> SubmissionStack::take() {
    std::vector<std::shared_ptr<Submission>> taken;
    Submission* top = last_.exchange(nullptr, std::memory_order_acquire);
    while (top != nullptr) {
        Submission* const next = top->next;
        taken.push_back(std::move(top->self));
        top = next;
    }
    std::reverse(taken.begin(), taken.end());
    return taken;
}

void release_retired() {
    for (const auto& submission : retired().take()) submission->work.reset();  // the submission itself may live on
}

Mailbox::Mailbox() : generation_(fork_generation()) { retired(); }

Mailbox::~Mailbox() {
    for (auto& submission : delivered_.take()) retire(std::move(submission));
}

bool Mailbox::here() const { return fork_generation() == generation_; }

std::vector<std::shared_ptr<Submission>> Mailbox::take() {
    // The parent's and the child's descriptors are the same bell.
    if (!here()) throw std::logic_error("a forked child can't use its parent's mailbox");
    bell_.clear();
    return delivered_.take();
}

void Mailbox::deliver(std::shared_ptr<Submission> submission) noexcept {
    delivered_.put(std::move(submission));
    bell_.ring();
}

// The state that a pool shares with its threads, which may outlive it.
class PoolState {
  public:
    using Clock = std::chrono::steady_clock;

    explicit PoolState(std::size_t num_threads) : num_alive_(num_threads), last_end_(Clock::now()) {}

    void work();
    std::shared_ptr<Submission> submit(std::shared_ptr<Submission> submission);
    bool withdraw(Submission& submission);
    std::deque<std::shared_ptr<Submission>> take_queue();
    void end(std::shared_ptr<Submission> last);
    void lose_threads(std::size_t count);
    bool ending();
    std::chrono::nanoseconds since_last_end() const { return Clock::now() - last_end_.load(); }

    // Delivers to its mailbox, which may be destroyed as soon as the submission has arrived.
    static void deliver(std::shared_ptr<Submission> submission) noexcept {
        const std::shared_ptr<Mailbox> mailbox = std::move(submission->mailbox);
        mailbox->deliver(std::move(submission));
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Submission>> queue_;
    std::size_t num_alive_;
    std::size_t num_idle_ = 0;
    bool ending_ = false;
    std::shared_ptr<Submission> last_;
    std::atomic<Clock::time_point> last_end_;
};

void PoolState::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        if (queue_.empty()) {
            if (ending_) break;
            ++num_idle_;
            changed_.wait(lock);
            --num_idle_;
            continue;
        }
        std::shared_ptr<Submission> submission = std::move(queue_.front());
        queue_.pop_front();
        if (submission->state != Submission::State::queued) continue;
        submission->state = Submission::State::started;
        lock.unlock();
        submission->failure = attempt(*submission->work);
        last_end_ = Clock::now();
        deliver(std::move(submission));
        lock.lock();
    }
    std::shared_ptr<Submission> last;
    if (--num_alive_ == 0) last = std::move(last_);
    lock.unlock();
    if (last != nullptr) deliver(std::move(last));
}

std::shared_ptr<Submission> PoolState::submit(std::shared_ptr<Submission> submission) {
    const std::lock_guard lock(mutex_);
    if (ending_) throw std::logic_error("the pool has ended");
    queue_.push_back(submission);
    if (num_idle_ > 0) changed_.notify_one();
    return submission;
}

bool PoolState::withdraw(Submission& submission) {
    std::shared_ptr<Mailbox> mailbox;
    const std::lock_guard lock(mutex_);
    if (submission.state != Submission::State::queued) return false;
    submission.state = Submission::State::withdrawn;
    mailbox = std::move(submission.mailbox);
    return true;
}

std::deque<std::shared_ptr<Submission>> PoolState::take_queue() {
    std::deque<std::shared_ptr<Submission>> taken;
    const std::lock_guard lock(mutex_);
    for (auto& submission : queue_) {
        if (submission->state != Submission::State::queued) continue;
        submission->state = Submission::State::withdrawn;
        submission->failure.kind = Failure::Kind::withdrawn;
        taken.push_back(std::move(submission));
    }
    queue_.clear();
    return taken;
}

void PoolState::end(std::shared_ptr<Submission> last) {
    {
        const std::lock_guard lock(mutex_);
        if (ending_) return;
        ending_ = true;
        last_ = std::move(last);
    }
    changed_.notify_all();
}

void PoolState::lose_threads(std::size_t count) {
    const std::lock_guard lock(mutex_);
    num_alive_ -= count;
}

bool PoolState::ending() {
    const std::lock_guard lock(mutex_);
    return ending_;
}

Pool::Pool(std::size_t num_threads) : state_(std::make_shared<PoolState>(num_threads)), generation_(fork_generation()) {
    retired();
    threads_.reserve(num_threads);
    const BlockedSignals blocked;
    try {
        while (threads_.size() < num_threads) {
            threads_.emplace_back([state = state_] {
                name_this_thread();
                state->work();
            });
        }
    } catch (...) {
        state_->lose_threads(num_threads - threads_.size());
        state_->end(nullptr);
        for (std::thread& thread : threads_) thread.join();
        throw;
    }
}

Pool::~Pool() {
    if (!here()) {
        // The threads are the parent's. At the fork its mutex may have been locked, and its jobs half written: leak
        // both.
        new std::shared_ptr<PoolState>(std::move(state_));
        new std::vector<std::thread>(std::move(threads_));
        return;
    }
    if (!state_->ending()) {
        for (auto& submission : state_->take_queue()) retire(std::move(submission));
        state_->end(nullptr);
    }
    for (std::thread& thread : threads_) thread.detach();
}

bool Pool::here() const { return fork_generation() == generation_; }

void Pool::require_here() const {
    if (!here()) throw std::logic_error("a forked child has none of its parent's threads");
}

std::shared_ptr<Submission> Pool::submit(std::shared_ptr<Work> work, std::uint64_t ticket,
                                         std::shared_ptr<Mailbox> mailbox) {
    require_here();
    return state_->submit(std::make_shared<Submission>(std::move(work), ticket, std::move(mailbox)));
}

bool Pool::withdraw(Submission& submission) {
    require_here();
    if (!state_->withdraw(submission)) return false;
    submission.work.reset();
    return true;
}

void Pool::withdraw_all() {
    require_here();
    for (auto& submission : state_->take_queue()) PoolState::deliver(std::move(submission));
}

void Pool::end(std::uint64_t ticket, std::shared_ptr<Mailbox> mailbox) {
    require_here();
    state_->end(std::make_shared<Submission>(nullptr, ticket, std::move(mailbox)));
}

std::chrono::nanoseconds Pool::since_last_end() const {
    require_here();
    return state_->since_last_end();
}

void Pool::join() {
    require_here();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    release_retired();
}

}  // namespace penstock

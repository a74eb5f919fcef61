// Jobs run once, arrive in their mailbox once, and only its reader drops them, in any order of destruction.
#include "core/pool.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/crc32.hpp"

using penstock::Failure;
using penstock::Mailbox;
using penstock::Pool;
using penstock::Submission;
using penstock::Work;

namespace {

int failures = 0;

void expect(bool holds, const char* promise) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", promise);
        ++failures;
    }
}

std::atomic<int> living{0};
thread_local bool may_drop = false;  // only threads that say so may drop jobs
std::atomic<bool> dropped_elsewhere{false};

class Called final : public Work {
  public:
    explicit Called(std::function<void()> function) : function_(std::move(function)) { ++living; }
    ~Called() override {
        --living;
        if (!may_drop) dropped_elsewhere = true;
    }
    void run() override { function_(); }

  private:
    std::function<void()> function_;
};

std::shared_ptr<Work> job(std::function<void()> function) { return std::make_shared<Called>(std::move(function)); }

// Holds jobs back until it is opened.
class Gate {
  public:
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void pass() {
        std::unique_lock lock(mutex_);
        ++num_waiting_;
        changed_.notify_all();
        changed_.wait(lock, [this] { return open_; });
    }
    void await(int count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return num_waiting_ >= count; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int num_waiting_ = 0;
    bool open_ = false;
};

// Takes submissions from the mailbox until a number of them has arrived.
std::vector<std::shared_ptr<Submission>> receive(Mailbox& mailbox, std::size_t count) {
    std::vector<std::shared_ptr<Submission>> all;
    while (all.size() < count) {
        penstock::Bell::wait_readable(mailbox.fileno(), std::nullopt);
        for (auto& each : mailbox.take()) all.push_back(std::move(each));
    }
    return all;
}

void end(Pool& pool, const std::shared_ptr<Mailbox>& mailbox) {
    pool.end(~0ULL, mailbox);
    const auto left = receive(*mailbox, 1);
    expect(left.size() == 1 && left[0]->work == nullptr, "after the last job the end arrives, alone");
    pool.join();
}

void every_job_comes_once(std::size_t num_threads, std::size_t num_loops) {
    constexpr std::size_t count = 2000;
    Pool pool(num_threads);
    std::vector<std::atomic<int>> runs(count * num_loops);
    std::vector<std::thread> loops;
    for (std::size_t loop = 0; loop < num_loops; ++loop) {
        loops.emplace_back([&, loop] {
            may_drop = true;
            auto mailbox = std::make_shared<Mailbox>();
            std::map<std::uint64_t, int> came;
            std::size_t withdrawn = 0;
            std::vector<std::shared_ptr<Submission>> kept;
            for (std::size_t i = 0; i < count; ++i) {
                kept.push_back(pool.submit(job([&, i, loop] { ++runs[loop * count + i]; }), i, mailbox));
                if (i % 7 == 0 && pool.withdraw(*kept[i / 2])) ++withdrawn;
            }
            for (const auto& each : receive(*mailbox, count - withdrawn)) ++came[each->ticket];
            expect(mailbox->take().empty(), "nothing comes twice");
            expect(came.size() == count - withdrawn, "every job that wasn't withdrawn arrives");
            for (std::size_t i = 0; i < count; ++i) {
                expect(runs[loop * count + i] == (came.count(i) != 0 ? 1 : 0), "a job runs once, or was withdrawn");
            }
        });
    }
    for (auto& loop : loops) loop.join();
    end(pool, std::make_shared<Mailbox>());
}

void failures_are_told() {
    Pool pool(1);
    auto mailbox = std::make_shared<Mailbox>();
    pool.submit(job([] { throw std::runtime_error("mine"); }), 0, mailbox);
    pool.submit(job([] { throw std::out_of_range("key"); }), 1, mailbox);
    pool.submit(job([] { throw std::bad_alloc(); }), 2, mailbox);
    pool.submit(job([] { throw 3; }), 3, mailbox);
    pool.submit(std::make_shared<penstock::ReadFile>(penstock::File("/no/such/file"), 3, 4), 4, mailbox);
    const auto came = receive(*mailbox, 5);
    using penstock::PythonError;
    const std::array errors{PythonError::runtime_error, PythonError::index_error, PythonError::memory_error,
                            PythonError::runtime_error, PythonError::os_error};
    for (std::size_t i = 0; i < came.size(); ++i) {
        const Failure& failure = came[i]->failure;
        expect(failure.kind == Failure::Kind::error && failure.error == errors[i], "each failure has its exception");
    }
    expect(came[0]->failure.text == "mine", "a failure keeps its text");
    expect(came[4]->failure.error_number == ENOENT && came[4]->failure.file == "/no/such/file",
           "a file's failure names it");
    end(pool, mailbox);
}

void withdrawing_all_spares_what_runs() {
    Pool pool(2);
    Gate gate;
    auto mailbox = std::make_shared<Mailbox>();
    for (std::uint64_t i = 0; i < 10; ++i) pool.submit(job([&] { gate.pass(); }), i, mailbox);
    gate.await(2);
    pool.withdraw_all();
    const auto withdrawn = receive(*mailbox, 8);
    for (std::size_t i = 0; i < withdrawn.size(); ++i) {
        expect(withdrawn[i]->ticket == i + 2, "jobs that have not started arrive in order");
        expect(withdrawn[i]->failure.kind == Failure::Kind::withdrawn, "and says why");
    }
    pool.end(99, mailbox);
    expect(mailbox->take().empty(), "the end waits for what runs");
    gate.open();
    const auto ran = receive(*mailbox, 3);
    expect(ran[2]->ticket == 99 && ran[0]->failure.kind == Failure::Kind::none, "what runs ends well");
    pool.join();
}

// In each order: pool, mailbox and reader go while a job runs and others are queued.
void whoever_goes_first(bool mailbox_first, bool keep_submission) {
    auto gate = std::make_shared<Gate>();
    auto pool = std::make_unique<Pool>(2);
    auto mailbox = std::make_shared<Mailbox>();
    std::shared_ptr<Submission> kept;
    for (std::uint64_t i = 0; i < 6; ++i) kept = pool->submit(job([gate] { gate->pass(); }), i, mailbox);
    if (!keep_submission) kept.reset();
    gate->await(2);
    if (mailbox_first) mailbox.reset();
    pool.reset();
    mailbox.reset();
    kept.reset();
    penstock::release_retired();
    expect(living == 2, "only what runs is kept");
    gate->open();
    while (living != 0) {  // the threads have no owner now, so there is nothing to wait on
        std::this_thread::yield();
        penstock::release_retired();
    }
}

void abandoned_after_its_end() {
    auto gate = std::make_shared<Gate>();
    auto pool = std::make_unique<Pool>(2);
    auto mailbox = std::make_shared<Mailbox>();
    pool->submit(job([gate] { gate->pass(); }), 0, mailbox);
    pool->submit(job([] {}), 1, mailbox);
    gate->await(1);
    expect(receive(*mailbox, 1)[0]->ticket == 1, "other jobs end beside one that hangs");
    expect(pool->since_last_end() >= std::chrono::nanoseconds(0), "the pool knows how long ago");
    pool->end(2, mailbox);
    pool.reset();
    gate->open();
    const auto ended = receive(*mailbox, 2);
    expect(ended[0]->ticket == 0 && ended[1]->ticket == 2, "a job that outlives its pool arrives, and then the end");
}

void ends_while_queued() {
    Pool pool(3);
    auto mailbox = std::make_shared<Mailbox>();
    std::atomic<int> ran{0};
    for (std::uint64_t i = 0; i < 500; ++i) pool.submit(job([&] { ++ran; }), i, mailbox);
    pool.end(1000, mailbox);
    expect(receive(*mailbox, 501).back()->ticket == 1000, "the end comes last");
    expect(ran == 500, "the end arrives when all jobs have run");
    bool refused = false;
    try {
        pool.submit(job([] {}), 0, mailbox);
    } catch (const std::logic_error&) {
        refused = true;
    }
    expect(refused, "nothing is submitted after the end");
    pool.join();
}

void threads_block_signals() {
    Pool pool(1);
    auto mailbox = std::make_shared<Mailbox>();
    sigset_t inside;
    pool.submit(job([&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &inside); }), 0, mailbox);
    receive(*mailbox, 1);
    for (const int number : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1}) {
        expect(::sigismember(&inside, number) == 1, "the pool's threads block signals");
    }
    expect(::sigismember(&inside, SIGSEGV) == 0, "but not their own faults");
    sigset_t here;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &here);
    expect(::sigismember(&here, SIGINT) == 0, "the creator of a pool keeps its signal mask");
    end(pool, mailbox);
}

// The thread sanitizer's own threads don't survive a fork of a process with threads.
#ifndef PENSTOCK_SANITIZE_thread
void a_child_is_refused() {
    auto pool = std::make_unique<Pool>(2);
    auto gate = std::make_shared<Gate>();
    auto mailbox = std::make_shared<Mailbox>();
    for (std::uint64_t i = 0; i < 5; ++i) pool->submit(job([gate] { gate->pass(); }), i, mailbox);
    gate->await(2);
    const pid_t child = ::fork();
    if (child == 0) {
        int refused = 0;
        for (const auto& attempt : std::vector<std::function<void()>>{
                 [&] { pool->submit(job([] {}), 9, mailbox); }, [&] { pool->withdraw_all(); },
                 [&] { pool->end(9, mailbox); }, [&] { pool->join(); }, [&] { mailbox->take(); }}) {
            try {
                attempt();
            } catch (const std::logic_error&) {
                ++refused;
            }
        }
        pool.reset();
        mailbox.reset();
        auto own = std::make_shared<Mailbox>();
        Pool other(1);
        other.submit(job([] {}), 1, own);
        receive(*own, 1);
        ::_exit(refused == 5 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    expect(status == 0, "a child is refused, and may have a pool of its own");
    gate->open();
    expect(receive(*mailbox, 5).size() == 5, "the parent is unharmed");
    end(*pool, mailbox);
}
#endif

void checksums_agree() {
    // The definition, bit by bit.
    const auto slow = [](const std::vector<std::byte>& bytes, std::uint32_t polynomial) {
        std::uint32_t value = ~0U;
        for (const std::byte byte : bytes) {
            value ^= static_cast<std::uint32_t>(byte);
            for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0U);
        }
        return ~value;
    };
    std::vector<std::byte> bytes;
    for (std::uint32_t state = 1; bytes.size() < 700; state = state * 1664525 + 1013904223) {
        const std::span<const std::byte> all(bytes);
        const std::size_t cut = bytes.size() / 3;
        for (const auto& [sum, polynomial] :
             {std::pair(&penstock::crc32, 0xEDB88320U), {&penstock::crc32c, 0x82F63B78U}}) {
            expect(sum(all, 0) == slow(bytes, polynomial), "a checksum is that of the definition");
            expect(sum(all.subspan(cut), sum(all.first(cut), 0)) == slow(bytes, polynomial), "and goes on");
        }
        bytes.push_back(static_cast<std::byte>(state >> 24));
    }
}

}  // namespace

int main() {
    may_drop = true;
    for (const std::size_t num_threads : {1, 2, 5}) {
        for (const std::size_t num_loops : {1, 3}) every_job_comes_once(num_threads, num_loops);
    }
    failures_are_told();
    withdrawing_all_spares_what_runs();
    for (const bool mailbox_first : {false, true}) {
        for (const bool keep_submission : {false, true}) whoever_goes_first(mailbox_first, keep_submission);
    }
    abandoned_after_its_end();
    ends_while_queued();
    threads_block_signals();
#ifndef PENSTOCK_SANITIZE_thread
    a_child_is_refused();
#endif
    checksums_agree();
    penstock::release_retired();
    expect(living == 0, "every job is dropped in the end");
    expect(!dropped_elsewhere, "no thread of a pool drops a job");
    return failures == 0 ? 0 : 1;
}

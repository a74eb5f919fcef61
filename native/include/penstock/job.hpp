// Jobs: work in C++ for the threads of a penstock.concurrency.NativeThreadPool, awaited by asyncio.
//
// For extensions: C++17, this header and `bytes.hpp`, nothing to link with. `penstock/job_python.hpp` hands a job to
// Python, as a capsule; `NativeJob.from_extension(capsule)` takes it. `penstock.transport.include_directory()` says
// where the headers are.
//
//     penstock::Job job = penstock::make_job([bytes = std::move(bytes)] { return parse(bytes); });
//
// Guarantees of who runs a job:
//   - `run` is called once at most, on a thread that doesn't hold the interpreter's lock and has all signals blocked.
//   - A job outlives what waits for it: it is kept until it has ended, whether or not somebody still wants its result.
//   - All other functions are called by threads of Python that hold the interpreter's lock, so that a job may keep
//     Python objects, as long as `run` leaves their reference counts alone.
//   - A job that runs while the process ends is never released.
//
// A handle is a plain C struct that carries its functions with it. So modules that were built by different compilers,
// or against different versions of this header, can exchange jobs; nothing of std:: crosses between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "bytes.hpp"

extern "C" {

// What crosses between modules, in a PyCapsule of the name below. No function throws. Fields are never moved; a later
// version of the struct has another name.
struct penstock_job_v1 {
    std::uint32_t version;   // 1
    std::uint32_t reserved;  // 0
    void* self;
    // Does the work. Returns null when it is done; else says why it isn't, in UTF-8 that lasts until the last release.
    const char* (*run)(void* self);
    // Called once at most, after a run that was done: gives what the job made to the caller, who releases it, and
    // returns 1; or returns 0, if it made nothing.
    std::uint32_t (*result)(void* self, struct penstock_bytes_v1* bytes);
    void (*retain)(void* self);
    void (*release)(void* self);  // the last one drops the job
};
}

namespace penstock {

inline constexpr char job_capsule_name[] = "penstock.job.v1";

namespace detail {

// A function that is called once, what it returned or threw, and the count of handles that share it.
template <class Function>
class OwnedJob {
  public:
    explicit OwnedJob(Function function) : function_(std::move(function)) { num_living_owners.fetch_add(1); }
    OwnedJob(const OwnedJob&) = delete;
    OwnedJob& operator=(const OwnedJob&) = delete;

    static const char* run(void* self) noexcept {
        auto& job = *static_cast<OwnedJob*>(self);
        try {
            if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
                job.function_();
            } else {
                job.result_ = job.function_();
                job.has_result_ = true;
            }
            return nullptr;
        } catch (const std::exception& error) {
            return job.keep(error.what());
        } catch (...) {
            return "the job threw what is no std::exception";
        }
    }

    static std::uint32_t result(void* self, penstock_bytes_v1* bytes) noexcept {
        auto& job = *static_cast<OwnedJob*>(self);
        if (!job.has_result_) return 0;
        *bytes = job.result_.handle();
        if (bytes->owner != nullptr) bytes->retain(bytes->owner);
        job.result_ = Bytes();
        return 1;
    }

    static void retain(void* self) noexcept {
        static_cast<OwnedJob*>(self)->count_.fetch_add(1, std::memory_order_relaxed);
    }
    static void release(void* self) noexcept {
        auto* job = static_cast<OwnedJob*>(self);
        if (job->count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete job;
    }

  private:
    ~OwnedJob() { num_living_owners.fetch_sub(1); }

    const char* keep(const char* text) noexcept {
        try {
            error_ = text;
            return error_.c_str();
        } catch (...) {
            return "the job failed, and there was no memory to say why";
        }
    }

    Function function_;
    Bytes result_;
    bool has_result_ = false;
    std::string error_;
    std::atomic<std::size_t> count_{1};
};

}  // namespace detail

// A shared job; copying the handle copies no work.
class Job {
  public:
    // Shares what another module's struct describes. Throws std::invalid_argument where it is of another version.
    static Job share(const penstock_job_v1& handle) {
        if (handle.version != 1) {
            throw std::invalid_argument("penstock::Job::share: the struct must be of version 1");
        }
        handle.retain(handle.self);
        return Job(handle);
    }
    // Takes over the one reference that the maker of the struct holds.
    static Job adopt(const penstock_job_v1& handle) noexcept { return Job(handle); }

    Job(const Job& other) noexcept : handle_(other.handle_) { handle_.retain(handle_.self); }
    Job& operator=(Job other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Job() { handle_.release(handle_.self); }

    // The struct to hand to another module, which retains the job before this handle goes (see `share`).
    const penstock_job_v1& handle() const noexcept { return handle_; }

    // Does the work. Throws std::runtime_error with the job's own words where it fails.
    void run() {
        if (const char* error = handle_.run(handle_.self)) throw std::runtime_error(error);
    }
    // Moves what it made to `bytes`; false if it made nothing.
    bool take_result(Bytes& bytes) {
        penstock_bytes_v1 made{};
        if (handle_.result == nullptr || handle_.result(handle_.self, &made) == 0) return false;
        bytes = Bytes::share(made);
        if (made.owner != nullptr) made.release(made.owner);
        return true;
    }

  private:
    explicit Job(const penstock_job_v1& handle) noexcept : handle_(handle) {}

    penstock_job_v1 handle_;
};

// A job that calls `function()` once. It returns nothing, or what `Bytes` can be made of: that is what the awaiting
// task gets. What it throws becomes a RuntimeError with the text of `what()`.
template <class Function>
Job make_job(Function&& function) {
    using Kept = detail::OwnedJob<std::decay_t<Function>>;
    auto* job = new Kept(std::forward<Function>(function));
    return Job::adopt({1, 0, job, &Kept::run, &Kept::result, &Kept::retain, &Kept::release});
}

}  // namespace penstock

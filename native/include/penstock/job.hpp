// Jobs: work in C++ for the threads of a penstock.concurrency.NativeThreadPool, awaited by asyncio.
//
// For extensions: C++17, this header and `bytes.hpp`, nothing to link. `penstock/job_python.hpp` passes a job to
// Python, as a capsule, for `NativeJob.from_extension(capsule)`. `penstock.transport.include_directory()` returns the
// folder of the headers.
//
//     penstock::Job job = penstock::make_job([bytes = std::move(bytes)] { return parse(bytes); });
//
// Guarantees of the pool that runs a job:
//   - `run` is called at most once, on a thread that doesn't hold the GIL and has all signals blocked.
//   - The pool keeps a job until it has ended, even if its result is no longer awaited.
//   - All other functions are called by Python's threads with the GIL, so that a job may keep Python objects, if `run`
//     doesn't change their reference counts.
//   - A job that runs while the process ends is never released.
//
// A handle is a plain C struct with its functions. So modules that were built by different compilers, or against
// different versions of this header, can exchange jobs; no type of std:: crosses between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "bytes.hpp"

extern "C" {

// The failure of a job.
struct penstock_job_failure_v2 {
    std::uint32_t error;        // the type of the Python exception: a penstock::PythonError
    std::int32_t error_number;  // of an OSError: the errno, or 0 if there is none
    const char* text;           // in UTF-8; lasts until the job's last release
};

// The struct that modules exchange, in a PyCapsule of the name below. No function throws. Fields are never moved; a
// later version of the struct has another name.
struct penstock_job_v2 {
    std::uint32_t version;   // 2
    std::uint32_t reserved;  // 0
    void* self;
    // Does the work. Returns 1 when it is done; else fills `failure` and returns 0.
    std::uint32_t (*run)(void* self, struct penstock_job_failure_v2* failure);
    // Called at most once, after a run that returned 1, unless `finish` is set: passes the job's bytes to the caller,
    // which releases them, and returns 1; or returns 0 if the job has none. Null: the job never has bytes.
    std::uint32_t (*result)(void* self, struct penstock_bytes_v1* bytes);
    // Called at most once, after a run that returned 1, with the GIL: returns a new reference to the result, a
    // PyObject*; or null, with a Python exception set. Null: the job makes no Python object.
    void* (*finish)(void* self);
    void (*retain)(void* self);
    void (*release)(void* self);  // the last call drops the job
};
}

namespace penstock {

inline constexpr char job_capsule_name[] = "penstock.job.v2";

// The Python exceptions of failed jobs.
enum class PythonError : std::uint32_t {
    runtime_error = 0,  // also for values that a later version of this header may add
    value_error = 1,
    index_error = 2,
    os_error = 3,
    memory_error = 4,
    overflow_error = 5,
};

// A job of another module failed.
class JobFailure : public std::runtime_error {
  public:
    explicit JobFailure(const penstock_job_failure_v2& failure)
        : std::runtime_error(failure.text), error_(failure.error), error_number_(failure.error_number) {}
    PythonError error() const noexcept {
        return error_ <= std::uint32_t(PythonError::overflow_error) ? PythonError(error_) : PythonError::runtime_error;
    }
    int error_number() const noexcept { return error_number_; }

  private:
    std::uint32_t error_;
    int error_number_;
};

namespace detail {

// Called while an exception is handled: calls `take(error, error_number, text)` with its Python equivalent.
template <class Take>
void describe_exception(Take take) noexcept {
    try {
        throw;
    } catch (const JobFailure& error) {
        take(error.error(), error.error_number(), error.what());
    } catch (const std::system_error& error) {
        // By name: modules may have categories of their own.
        const char* category = error.code().category().name();
        const bool is_errno = std::strcmp(category, "generic") == 0 || std::strcmp(category, "system") == 0;
        const bool is_os = is_errno || std::strcmp(category, "iostream") == 0;
        take(is_os ? PythonError::os_error : PythonError::runtime_error, is_errno ? error.code().value() : 0,
             error.what());
    } catch (const std::bad_alloc& error) {
        take(PythonError::memory_error, 0, error.what());
    } catch (const std::out_of_range& error) {
        take(PythonError::index_error, 0, error.what());
    } catch (const std::invalid_argument& error) {
        take(PythonError::value_error, 0, error.what());
    } catch (const std::domain_error& error) {
        take(PythonError::value_error, 0, error.what());
    } catch (const std::length_error& error) {
        take(PythonError::value_error, 0, error.what());
    } catch (const std::range_error& error) {
        take(PythonError::value_error, 0, error.what());
    } catch (const std::overflow_error& error) {
        take(PythonError::overflow_error, 0, error.what());
    } catch (const std::exception& error) {
        take(PythonError::runtime_error, 0, error.what());
    } catch (...) {
        take(PythonError::runtime_error, 0, "the job threw an object that is no std::exception");
    }
}

// The count of handles that share a job, and the text of its failure.
class JobOwner {
  public:
    JobOwner() { num_living_owners.fetch_add(1); }
    JobOwner(const JobOwner&) = delete;
    JobOwner& operator=(const JobOwner&) = delete;

    void share() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
    bool drop() noexcept { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

    // Called while an exception is handled.
    std::uint32_t fail(penstock_job_failure_v2* failure) noexcept {
        describe_exception([&](PythonError error, int error_number, const char* text) noexcept {
            try {
                text_ = text;
                text = text_.c_str();
            } catch (...) {
                text = "the job failed, and there was no memory for the reason";
            }
            *failure = {static_cast<std::uint32_t>(error), error_number, text};
        });
        return 0;
    }

  protected:
    ~JobOwner() { num_living_owners.fetch_sub(1); }

  private:
    std::string text_;
    std::atomic<std::size_t> count_{1};
};

// A function that is called once, and the bytes that it returned.
template <class Function>
class OwnedJob final : public JobOwner {
  public:
    explicit OwnedJob(Function function) : function_(std::move(function)) {}

    static std::uint32_t run(void* self, penstock_job_failure_v2* failure) noexcept {
        auto& job = *static_cast<OwnedJob*>(self);
        try {
            if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
                job.function_();
            } else {
                job.result_ = job.function_();
                job.has_result_ = true;
            }
            return 1;
        } catch (...) {
            return job.fail(failure);
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

    static void retain(void* self) noexcept { static_cast<OwnedJob*>(self)->share(); }
    static void release(void* self) noexcept {
        auto* job = static_cast<OwnedJob*>(self);
        if (job->drop()) delete job;
    }

  private:
    Function function_;
    Bytes result_;
    bool has_result_ = false;
};

}  // namespace detail

// A shared job; copying the handle copies no work.
class Job {
  public:
    // Shares the job of another module's struct. Throws std::invalid_argument if it has another version.
    static Job share(const penstock_job_v2& handle) {
        if (handle.version != 2) {
            throw std::invalid_argument("penstock::Job::share: the struct must be of version 2");
        }
        handle.retain(handle.self);
        return Job(handle);
    }
    // Takes the one reference that the creator of the struct holds.
    static Job adopt(const penstock_job_v2& handle) noexcept { return Job(handle); }

    Job(const Job& other) noexcept : handle_(other.handle_) { handle_.retain(handle_.self); }
    Job& operator=(Job other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Job() { handle_.release(handle_.self); }

    // The struct for another module, which must retain the job before this handle is dropped (see `share`).
    const penstock_job_v2& handle() const noexcept { return handle_; }

    // Does the work. Throws JobFailure if it fails.
    void run() {
        penstock_job_failure_v2 failure{};
        if (handle_.run(handle_.self, &failure) == 0) throw JobFailure(failure);
    }
    // Whether finish() makes the result.
    bool makes_python() const noexcept { return handle_.finish != nullptr; }
    // Makes the result, with the GIL: a new reference to a PyObject, or null with an exception set.
    void* finish() { return handle_.finish(handle_.self); }
    // Moves the job's bytes to `bytes`; false if it has none.
    bool take_result(Bytes& bytes) {
        penstock_bytes_v1 made{};
        if (handle_.result == nullptr || handle_.result(handle_.self, &made) == 0) return false;
        bytes = Bytes::share(made);
        if (made.owner != nullptr) made.release(made.owner);
        return true;
    }

  private:
    explicit Job(const penstock_job_v2& handle) noexcept : handle_(handle) {}

    penstock_job_v2 handle_;
};

// A job that calls `function()` once. The function returns nothing, or a value that converts to `Bytes`, which the
// awaiting task receives. `make_python_job` in `job_python.hpp` makes any Python object instead. An exception of the
// function is raised in the task, with the text of `what()`:
//
//     std::out_of_range                                      IndexError
//     std::invalid_argument, domain_error, length_error,
//         range_error                                        ValueError
//     std::overflow_error                                    OverflowError
//     std::system_error                                      OSError, or its subclass, with the errno
//     std::bad_alloc                                         MemoryError
//     everything else                                        RuntimeError
template <class Function>
Job make_job(Function&& function) {
    using Kept = detail::OwnedJob<std::decay_t<Function>>;
    auto* job = new Kept(std::forward<Function>(function));
    return Job::adopt({2, 0, job, &Kept::run, &Kept::result, nullptr, &Kept::retain, &Kept::release});
}

}  // namespace penstock

// The jobs of a pool's threads: reading a range of a file, copying, stacking, gathering, decompressing, checksums, and
// jobs of other modules.
//
// A job borrows its memory; its creator keeps that memory until the job is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/codecs.hpp"
#include "core/decompress.hpp"
#include "core/gather.hpp"
#include "include/penstock/bytes.hpp"
#include "include/penstock/job.hpp"

namespace penstock {

class Work {
  public:
    Work() = default;
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    virtual ~Work() = default;

    // Called at most once, on a thread of the pool. The job fails with the exception that it throws.
    virtual void run() = 0;
};

// Reading a file failed: code() is the errno, what() names the requested bytes.
class FileError : public std::system_error {
  public:
    FileError(int error, const std::string& what, std::string file)
        : std::system_error(error, std::generic_category(), what), text_(what), file_(std::move(file)) {}

    const std::string& text() const noexcept { return text_; }
    const std::string& file() const noexcept { return file_; }  // its path, or empty

  private:
    std::string text_;
    std::string file_;
};

// A file that is opened when it is read, or one that is open.
class File {
  public:
    explicit File(std::string path) : path_(std::move(path)) {}
    // Copies the descriptor, so that the caller may close it. Throws FileError if it is invalid.
    explicit File(int descriptor);
    File(File&& other) noexcept
        : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), given_(other.given_) {}
    File& operator=(File&&) = delete;
    ~File();

    int open(const std::string& range);
    [[noreturn]] void fail(int error, const std::string& what) const;

  private:
    std::string path_;
    int descriptor_ = -1;
    int given_ = -1;  // the caller's number for it
};

class ReadFile final : public Work {
  public:
    // Reads `size` bytes from `start` on, or the rest of the file without a size, into memory of its own.
    ReadFile(File file, std::uint64_t start, std::optional<std::uint64_t> size)
        : file_(std::move(file)), start_(start), size_(size) {}
    // Fills `out` from `start` on.
    ReadFile(File file, std::uint64_t start, std::span<std::byte> out)
        : file_(std::move(file)), start_(start), size_(out.size()), out_(out), given_(true) {}

    // Throws FileError, also if the file ends too early.
    void run() override;

    // The bytes that were read into memory of its own; only once.
    Bytes take_result() { return std::move(result_); }

  private:
    std::string range() const;
    // Reads up to the size of `place`; returns 0 at the end of the file.
    std::size_t read_some(int descriptor, std::uint64_t begin, std::span<std::byte> place) const;
    // Reads a file that reports no size: an empty one, one of the system, or a device.
    void read_to_end(int descriptor, bool is_device);
    [[noreturn]] void fail_at(std::uint64_t end) const;

    File file_;
    std::uint64_t start_;
    std::optional<std::uint64_t> size_;
    std::span<std::byte> out_;
    bool given_ = false;
    Bytes result_;
};

// Copies bytes to as many bytes, which may overlap them.
class Copy final : public Work {
  public:
    Copy(std::span<const std::byte> source, std::byte* out) : source_(source), out_(out) {}
    void run() override;

  private:
    std::span<const std::byte> source_;
    std::byte* out_;
};

// Copies rows into consecutive memory.
class Stack final : public Work {
  public:
    Stack(std::vector<const void*> rows, std::size_t row_bytes, std::byte* out)
        : rows_(std::move(rows)), row_bytes_(row_bytes), out_(out) {}
    void run() override;

  private:
    std::vector<const void*> rows_;
    std::size_t row_bytes_;
    std::byte* out_;
};

// Copies the rows of `keys`. Throws std::out_of_range, before anything is written, if a key isn't a row's number.
class Gather final : public Work {
  public:
    Gather(RowTable rows, std::vector<std::int64_t> keys, std::byte* out)
        : rows_(std::move(rows)), keys_(std::move(keys)), out_(out) {}
    void run() override { rows_.gather(keys_, out_); }

  private:
    RowTable rows_;
    std::vector<std::int64_t> keys_;  // a copy: they are checked once and used later
    std::byte* out_;
};

class Checksum final : public Work {
  public:
    Checksum(std::span<const std::byte> source, std::uint32_t initial) : source_(source), value_(initial) {}
    void run() override;
    std::uint32_t value() const noexcept { return value_; }

  private:
    std::span<const std::byte> source_;
    std::uint32_t value_;
};

// The 64-bit XXH3. The constructor throws LibraryMissing.
class Xxh3 final : public Work {
  public:
    Xxh3(std::span<const std::byte> source, std::uint64_t seed)
        : function_(xxhash().xxh3_64), source_(source), value_(seed) {}
    void run() override { value_ = function_(source_.data(), source_.size(), value_); }
    std::uint64_t value() const noexcept { return value_; }

  private:
    decltype(Xxhash::xxh3_64) function_;
    std::span<const std::byte> source_;
    std::uint64_t value_;
};

// Decompresses a whole input. The constructor throws LibraryMissing, run() throws DataError.
class Decompress final : public Work {
  public:
    // Into memory of its own, of exactly `size` bytes, or without a size of at most `max_size`.
    Decompress(Codec codec, std::span<const std::byte> source, std::optional<std::uint64_t> size,
               std::uint64_t max_size)
        : codec_(codec), source_(source), size_(size), max_size_(max_size) {
        require(codec);
    }
    // Fills `out`.
    Decompress(Codec codec, std::span<const std::byte> source, std::span<std::byte> out)
        : codec_(codec), source_(source), out_(out), given_(true) {
        require(codec);
    }
    void run() override;

    // The output in memory of its own; only once.
    Bytes take_result() { return std::move(result_); }

  private:
    Codec codec_;
    std::span<const std::byte> source_;
    std::optional<std::uint64_t> size_;
    std::uint64_t max_size_ = 0;
    std::span<std::byte> out_;
    bool given_ = false;
    Bytes result_;
};

// A job of another module.
class Foreign final : public Work {
  public:
    explicit Foreign(Job job) : job_(std::move(job)) {}
    void run() override { job_.run(); }
    bool take_result(Bytes& bytes) { return job_.take_result(bytes); }
    bool makes_python() const noexcept { return job_.makes_python(); }
    void* finish() { return job_.finish(); }

  private:
    Job job_;
};

}  // namespace penstock

#include "core/jobs.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/crc32.hpp"
#include "core/stack.hpp"

namespace penstock {

namespace {

constexpr std::size_t max_at_once = std::size_t{1} << 30;  // systems read at most about 2 GiB in one call
constexpr std::size_t part_bytes = std::size_t{1} << 16;   // of a file without a known size

std::string reason(int error) { return std::generic_category().message(error); }

// Memory for a job's result, not zeroed.
std::shared_ptr<std::byte[]> fresh(std::uint64_t size) { return std::shared_ptr<std::byte[]>(new std::byte[size]); }

Bytes finished(std::shared_ptr<std::byte[]> memory, std::size_t size) {
    const std::byte* const data = memory.get();
    return Bytes(data, size, std::shared_ptr<const void>(std::move(memory), data));
}

}  // namespace

File::File(int descriptor) : given_(descriptor) {
    descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0) fail(errno, reason(errno));
}

File::~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

void File::fail(int error, const std::string& what) const {
    const std::string suffix = given_ < 0 ? "" : " (descriptor " + std::to_string(given_) + ")";
    throw FileError(error, what + suffix, path_);
}

int File::open(const std::string& range) {
    while (descriptor_ < 0) {
        descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
        if (descriptor_ < 0 && errno != EINTR) fail(errno, reason(errno) + ", for " + range);
    }
    return descriptor_;
}

std::string ReadFile::range() const {
    return "bytes [" + std::to_string(start_) + ", " + (size_ ? std::to_string(start_ + *size_) : "end") + ")";
}

void ReadFile::fail_at(std::uint64_t end) const {
    file_.fail(EIO, "the file ends at byte " + std::to_string(end) + ", and " + range() + " were requested");
}

std::size_t ReadFile::read_some(int descriptor, std::uint64_t begin, std::span<std::byte> place) const {
    while (true) {
        const ssize_t count =
            ::pread(descriptor, place.data(), std::min(place.size(), max_at_once), static_cast<off_t>(begin));
        if (count >= 0) return static_cast<std::size_t>(count);
        if (errno != EINTR) file_.fail(errno, reason(errno) + ", for " + range());
    }
}

void ReadFile::read_to_end(int descriptor, bool is_device) {
    std::vector<std::byte> found;
    std::vector<std::byte> part(part_bytes);
    while (const std::size_t count = read_some(descriptor, start_ + found.size(), part)) {
        if (is_device) file_.fail(EINVAL, "a device may have no end, and " + range() + " were requested; give a size");
        found.insert(found.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(count));
    }
    std::shared_ptr<std::byte[]> own = fresh(found.size());
    std::copy(found.begin(), found.end(), own.get());
    result_ = finished(std::move(own), found.size());
}

void ReadFile::run() {
    const int descriptor = file_.open(range());
    struct stat status{};
    if (::fstat(descriptor, &status) != 0) file_.fail(errno, reason(errno) + ", for the size of the file");
    const auto end = static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
    if (!size_ && end == 0) return read_to_end(descriptor, S_ISCHR(status.st_mode));
    if (!size_) size_ = end > start_ ? end - start_ : 0;
    // Before memory is allocated for bytes beyond the end. Some files of the system report 0 bytes, and have more.
    if (S_ISREG(status.st_mode) && end > 0 && *size_ > 0 && (start_ > end || *size_ > end - start_)) fail_at(end);
    std::shared_ptr<std::byte[]> own;
    if (!given_) {
        own = fresh(*size_);
        out_ = {own.get(), static_cast<std::size_t>(*size_)};
    }
    std::size_t done = 0;
    while (done < out_.size()) {
        const std::size_t count = read_some(descriptor, start_ + done, out_.subspan(done));
        if (count == 0) fail_at(start_ + done);
        done += count;
    }
    if (!given_) result_ = finished(std::move(own), done);
}

void Copy::run() {
    if (!source_.empty()) std::memmove(out_, source_.data(), source_.size());
}

void Stack::run() { copy_rows(rows_, row_bytes_, out_); }

void Checksum::run() { value_ = crc32(source_, value_); }

void Decompress::run() {
    if (given_) {
        decompress_into(codec_, source_, out_);
    } else if (size_) {
        auto own = fresh(*size_);
        decompress_into(codec_, source_, {own.get(), static_cast<std::size_t>(*size_)});
        result_ = finished(std::move(own), static_cast<std::size_t>(*size_));
    } else {
        result_ = decompress(codec_, source_, max_size_);
    }
}

}  // namespace penstock

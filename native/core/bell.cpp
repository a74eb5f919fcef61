#include "core/bell.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace penstock {

namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void open_pipe(int (&ends)[2]) {
    if (::pipe(ends) != 0) fail("cannot open a pipe");
    for (const int end : ends) {
        if (::fcntl(end, F_SETFL, O_NONBLOCK) != 0 || ::fcntl(end, F_SETFD, FD_CLOEXEC) != 0) {
            const int error = errno;
            ::close(ends[0]);
            ::close(ends[1]);
            errno = error;
            fail("cannot set up a pipe");
        }
    }
}

#ifdef __linux__
bool is_eventfd(int descriptor) {
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) == 0 || (flags & O_ACCMODE) != O_RDWR) return false;
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    char target[64];
    const auto length = ::readlink(link.c_str(), target, sizeof target);
    if (length < 0) return errno == ENOENT;  // it can't be checked without /proc
    return std::string_view(target, static_cast<std::size_t>(length)) == "anon_inode:[eventfd]";
}
#endif

// The time left in milliseconds, rounded up so that poll never returns too early; -1 for no deadline.
int milliseconds_left(const Bell::Deadline& deadline) {
    if (!deadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

}  // namespace

Bell::Bell(std::shared_ptr<AtomicWord> rung) : rung_(std::move(rung)) {
#ifdef __linux__
    read_descriptor_ = write_descriptor_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (read_descriptor_ < 0) fail("cannot open an eventfd");
#else
    int ends[2];
    open_pipe(ends);
    read_descriptor_ = ends[0];
    write_descriptor_ = ends[1];
#endif
}

Bell::Bell(std::shared_ptr<AtomicWord> rung, int descriptor) : rung_(std::move(rung)) {
#ifdef __linux__
    read_descriptor_ = write_descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (read_descriptor_ < 0 && errno != EBADF) fail("cannot open a bell");
    // A ring writes to the descriptor, which must not be an arbitrary file.
    if (!is_eventfd(read_descriptor_)) {
        if (read_descriptor_ >= 0) ::close(read_descriptor_);
        throw std::invalid_argument("a bell's descriptor must be an eventfd that never blocks");
    }
#else
    (void)descriptor;
    throw std::system_error(ENOTSUP, std::generic_category(), "a bell shared between processes requires Linux");
#endif
}

Bell::~Bell() {
    ::close(read_descriptor_);
    if (write_descriptor_ != read_descriptor_) ::close(write_descriptor_);
}

Bell::Outcome Bell::wait_readable(int descriptor, const Deadline& deadline, int interrupt) {
    pollfd watched[2] = {{descriptor, POLLIN, 0}, {interrupt, POLLIN, 0}};  // poll ignores negative descriptors
    for (;;) {
        const int timeout = milliseconds_left(deadline);
        const int count = ::poll(watched, 2, timeout);
        if (count < 0) {
            if (errno == EINTR) return Outcome::interrupted;
            fail("cannot wait for a bell");
        }
        if (watched[0].revents != 0) return Outcome::rung;
        if (watched[1].revents != 0) return Outcome::interrupted;
        if (milliseconds_left(deadline) == 0) return Outcome::timed_out;
    }
}

// A write can only fail because the descriptor is full, and then it is readable already.
void Bell::set_readable() {
    const std::uint64_t one = 1;  // the format of an eventfd; a pipe accepts any eight bytes
    while (::write(write_descriptor_, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

bool Bell::clear_readable() {
    std::uint64_t taken = 0;
    for (bool was_readable = false;;) {
        const auto count = ::read(read_descriptor_, &taken, sizeof taken);
        if (count < 0 && errno == EINTR) continue;
        was_readable = was_readable || count > 0;
        // One read empties an eventfd; a pipe may hold more.
        if (count <= 0 || read_descriptor_ == write_descriptor_) return was_readable;
    }
}

Pipe::Pipe() { open_pipe(ends_); }

Pipe::~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
}

}  // namespace penstock

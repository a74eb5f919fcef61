#include "core/parent_watch.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace penstock {

namespace {

constexpr int exit_code = 1;
constexpr auto pause_when_refused = std::chrono::milliseconds(10);  // poll fails, for example without memory

// A thread that is started while this exists runs no signal handlers; the program's own threads do.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t all;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;
    ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

void watch(std::vector<pollfd> watched) {
    while (!watched.empty()) {
        const int found = ::poll(watched.data(), static_cast<nfds_t>(watched.size()), -1);
        if (found < 0) std::this_thread::sleep_for(pause_when_refused);
        if (found <= 0) continue;
        const auto is_closed = [](const pollfd& each) { return (each.revents & POLLNVAL) != 0; };
        const auto has_ended = [](const pollfd& each) { return (each.revents & ~POLLNVAL) != 0; };
        if (std::any_of(watched.begin(), watched.end(), has_ended)) ::_exit(exit_code);
        watched.erase(std::remove_if(watched.begin(), watched.end(), is_closed), watched.end());
    }
}

}  // namespace

void end_when_readable(std::vector<int> descriptors) {
    std::vector<pollfd> watched;
    watched.reserve(descriptors.size());
    for (const int descriptor : descriptors) watched.push_back({descriptor, POLLIN, 0});
    const BlockedSignals blocked;
    std::thread(watch, std::move(watched)).detach();
}

}  // namespace penstock

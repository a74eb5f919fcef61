// A process ends with what it watches, whatever its threads are doing, and not before.
#include "core/parent_watch.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

namespace {

constexpr int of_the_watch = 1;
constexpr int by_itself = 7;

int failures = 0;

void expect(bool holds, const char* promise) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", promise);
        ++failures;
    }
}

int exit_code(pid_t child) {
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void check_end() {
    int watched[2];
    int silent[2];
    int begun[2];
    expect(::pipe(watched) == 0 && ::pipe(silent) == 0 && ::pipe(begun) == 0, "there are pipes");
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(watched[1]);
        penstock::end_when_readable({silent[0], watched[0]});
        if (::write(begun[1], "", 1) != 1) ::_exit(by_itself);
        for (;;) ::pause();
    }
    char byte = 0;
    expect(::read(begun[0], &byte, 1) == 1, "the child watches");
    int status = 0;
    expect(::waitpid(child, &status, WNOHANG) == 0, "it lives as long as nothing is readable");
    ::close(watched[0]);
    ::close(watched[1]);
    expect(exit_code(child) == of_the_watch, "it ends when one of the descriptors is hung up");
    for (const int end : {silent[0], silent[1], begun[0], begun[1]}) ::close(end);
}

void check_closed() {
    const pid_t child = ::fork();
    if (child == 0) {
        int closed[2];
        if (::pipe(closed) != 0) ::_exit(of_the_watch);
        ::close(closed[0]);
        penstock::end_when_readable({closed[0]});
        penstock::end_when_readable({});
        ::usleep(20'000);  // in which a watch that took it for readable would end this
        ::_exit(by_itself);
    }
    expect(exit_code(child) == by_itself, "one that is closed is not watched");
}

}  // namespace

int main() {
    check_end();
    check_closed();
    if (failures == 0) std::puts("parent watch: ends with what it watches");
    return failures == 0 ? 0 : 1;
}

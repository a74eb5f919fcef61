// Offered blocks: which array gets one, what happens when it is freed, and that an array that is kept has memory of its
// own.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "core/offered.hpp"

namespace {

using penstock::OfferedBlock;

constexpr std::size_t size = 100'000;
int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

// Shared memory that is mapped twice, as in two processes, and a part of it that doesn't begin with a page.
struct Shared {
    static constexpr std::size_t bytes = 1 << 20, start = 1'000;
    std::FILE* file = std::tmpfile();
    char *memory, *other;
    char* block;

    Shared() {
        const int descriptor = ::fileno(file);
        expect(::ftruncate(descriptor, bytes) == 0, "the file has a size");
        memory = map(descriptor);
        other = map(descriptor);
        block = memory + start;
        std::memset(memory, 7, bytes);
    }
    ~Shared() {
        ::munmap(memory, bytes);
        ::munmap(other, bytes);
        std::fclose(file);
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    static char* map(int descriptor) {
        return static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
    }
};

void one_array_of_the_size_gets_it() {
    Shared shared;
    OfferedBlock offered;
    expect(offered.take(size) == nullptr, "nothing is offered");
    offered.offer(shared.block, size);
    expect(offered.take(size - 1) == nullptr && offered.take(size + 1) == nullptr,
           "arrays of other sizes don't get it");
    expect(offered.is_free() && offered.take(size) == shared.block, "an array of the size gets it");
    expect(!offered.is_free() && offered.take(size) == nullptr, "another one doesn't");
    expect(offered.size_of(shared.block) == size && offered.size_of(shared.memory) == 0, "its size is known");
    expect(!offered.give_back(shared.memory), "other memory isn't the block");
    expect(offered.give_back(shared.block) && offered.is_free(), "it is free once the array is freed");
    expect(offered.take(size) == shared.block && offered.give_back(shared.block), "and goes to the next one");
    expect(!offered.end() && offered.take(size) == nullptr, "an offer that no array uses ends without a trace");
    expect(!offered.give_back(shared.block) && offered.size_of(shared.block) == 0, "the block is forgotten");
}

void a_fork_does_not_get_it() {
    Shared shared;
    OfferedBlock offered;
    offered.offer(shared.block, size);
    const int child = ::fork();
    if (child == 0) ::_exit(offered.take(size) == nullptr ? 0 : 1);
    int status = 1;
    expect(::waitpid(child, &status, 0) == child && status == 0, "an array of a forked process doesn't get it");
    expect(offered.take(size) == shared.block, "one of the process itself does");
}

void a_kept_array_has_memory_of_its_own() {
    Shared shared;
    char* const other = shared.other;
    OfferedBlock offered;
    offered.offer(shared.block, size);
    auto* const kept = static_cast<char*>(offered.take(size));
    std::memset(kept, 1, size);
    expect(offered.end(), "an array uses the block");
    expect(other[Shared::start] == 1 && other[Shared::start + size - 1] == 1, "others see what was written before");
    std::memset(other, 9, Shared::bytes);
    expect(kept[0] == 1 && kept[size - 1] == 1, "others can't write to the array");
    std::memset(kept, 2, size);
    expect(other[Shared::start] == 9, "and don't see what is written to it");
    expect(shared.memory[0] == 7 && shared.memory[Shared::bytes - 1] == 9, "only its pages are its own");
    expect(offered.size_of(kept) == size && offered.give_back(kept) && !offered.give_back(kept), "it is freed once");
}

}  // namespace

int main() {
    one_array_of_the_size_gets_it();
    a_fork_does_not_get_it();
    a_kept_array_has_memory_of_its_own();
    return failures == 0 ? 0 : 1;
}

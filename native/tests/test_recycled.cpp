// Recycled blocks: sizes of classes, which block a request gets, the bound, and many threads at once.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "core/recycled.hpp"

namespace {

using penstock::RecycledBlocks;

int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

void* made(std::size_t size) { return std::malloc(RecycledBlocks::rounded(size)); }

void classes_hold_their_sizes() {
    std::size_t before = 0;
    for (std::size_t size = RecycledBlocks::smallest; size <= RecycledBlocks::largest; size += 1021) {
        const std::size_t bytes = RecycledBlocks::rounded(size);
        expect(bytes >= size && bytes <= size + size / 8 && bytes >= before, "a class has at most an eighth more");
        expect(RecycledBlocks::rounded(bytes) == bytes, "the size of a class is in the class");
        before = bytes;
    }
    expect(RecycledBlocks::rounded(RecycledBlocks::largest) == RecycledBlocks::largest, "the largest size is kept");
    for (const std::size_t size : {std::size_t{0}, RecycledBlocks::smallest - 1, RecycledBlocks::largest + 1}) {
        expect(RecycledBlocks::rounded(size) == size && !RecycledBlocks::keeps(size), "other sizes are malloc's");
    }
}

void a_freed_block_is_the_next_of_its_class() {
    RecycledBlocks blocks;
    void* const block = made(100'000);
    expect(!blocks.keep(block, 100'000), "nothing is kept before it is allowed");
    blocks.allow(1 << 20);
    expect(blocks.keep(block, 100'000), "a freed block is kept");
    expect(blocks.take(200'000) == nullptr, "another class has no block");
    expect(blocks.take(99'999) == block && blocks.bytes() == 0, "a request gets the kept block of its class");
    expect(!blocks.keep(block, 200'000), "a block that is smaller than its size says is not kept");
    std::free(block);
}

void the_bound_holds() {
    RecycledBlocks blocks;
    blocks.allow(1'000'000);
    for (int number = 0; number < 100; ++number) {
        const std::size_t size = number < 50 ? 300'000 : 40'000;
        void* const block = made(size);
        std::memset(block, number, size);
        expect(blocks.keep(block, size) && blocks.bytes() <= 1'000'000, "at most the allowed bytes are kept");
    }
    void* const small = blocks.take(40'000);
    expect(small != nullptr, "the class with most bytes loses its blocks");
    std::free(small);
    blocks.allow(-1'000'000);
    expect(blocks.bytes() == 0, "without an allowance all blocks are freed");
}

void threads_exchange_blocks() {
    RecycledBlocks blocks;
    blocks.allow(2'000'000);
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
        threads.emplace_back([&blocks, number] {
            for (std::size_t turn = 0; turn < 2'000; ++turn) {
                const std::size_t size = 20'000 + turn % 7 * 50'000;
                void* block = blocks.take(size);
                if (block == nullptr) block = made(size);
                std::memset(block, number, size);
                if (!blocks.keep(block, size)) std::free(block);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    blocks.allow(-2'000'000);
    expect(blocks.bytes() == 0, "all blocks are freed");
}

}  // namespace

int main() {
    classes_hold_their_sizes();
    a_freed_block_is_the_next_of_its_class();
    the_bound_holds();
    threads_exchange_blocks();
    return failures == 0 ? 0 : 1;
}

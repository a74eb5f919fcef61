// Handles over bytes: places, sharing, exact counts of owners, other modules' structs, and drops from many threads.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "include/penstock/bytes.hpp"

namespace {

using penstock::Bytes;
using penstock::living_owners;

static_assert(std::is_nothrow_copy_constructible_v<Bytes> && std::is_nothrow_move_constructible_v<Bytes> &&
              std::is_nothrow_swappable_v<Bytes>);
static_assert(std::is_standard_layout_v<penstock_bytes_v1> && std::is_trivially_copyable_v<penstock_bytes_v1>);

int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

template <class Error, class Function>
bool throws(Function function) {
    try {
        function();
    } catch (const Error&) {
        return true;
    }
    return false;
}

void containers_are_moved_in() {
    std::string text(1000, 'x');
    const void* place = text.data();
    const Bytes long_text(std::move(text));
    expect(long_text.data() == place && long_text.size() == 1000, "a long string's characters stay where they are");
    expect(Bytes(std::string("short")).view() == "short", "a short string, whose characters move with it, is right");
    std::vector<std::uint8_t> numbers{1, 2, 255};
    place = numbers.data();
    const Bytes held(std::move(numbers));
    expect(held.data() == place && held[2] == std::byte{255} && held.end() - held.begin() == 3, "a vector stays too");
    expect(Bytes(std::vector<char>{'a', 'b'}) == Bytes(std::vector<std::byte>{std::byte{'a'}, std::byte{'b'}}),
           "handles are equal by value");
    expect(long_text.readonly() && throws<std::logic_error>([&] { (void)long_text.mutable_data(); }),
           "moved bytes are read-only");
    expect(living_owners() == 2, "each container has one owner");
}

void nothing_is_a_place_too() {
    for (const Bytes& bytes :
         {Bytes(), Bytes(std::string()), Bytes(std::vector<char>()), Bytes(nullptr, 0, nullptr), Bytes().slice(0)}) {
        expect(bytes.empty() && bytes.data() != nullptr && bytes.view().empty() && bytes == Bytes(),
               "no bytes have a place, and are equal");
    }
    expect(throws<std::invalid_argument>([] { (void)Bytes(nullptr, 1, nullptr); }), "null has no bytes");
    expect(living_owners() == 0, "a refused handle leaves no owner");
}

void slices_share_the_owner() {
    auto owner = std::make_shared<std::string>("0123456789");
    const std::weak_ptr<std::string> watched = owner;
    Bytes whole = Bytes::writable(owner->data(), owner->size(), owner);
    owner.reset();
    Bytes part = whole.slice(2, 5);
    Bytes inner = part.slice(1).as_readonly();
    expect(part.view() == "23456" && inner.view() == "3456" && inner.data() == whole.data() + 3, "slices are places");
    expect(whole.slice(10).empty() && whole.slice(8, 99).view() == "89", "a slice ends with its bytes at the latest");
    expect(throws<std::out_of_range>([&] { (void)part.slice(6); }), "a slice starts inside");
    *part.mutable_data() = std::byte{'X'};
    expect(whole.view() == "01X3456789" && !part.readonly() && inner.readonly(), "all handles see writes");
    expect(living_owners() == 1, "all share one owner");
    whole = Bytes();
    part = inner;
    inner = std::move(part);
    expect(!watched.expired() && inner.view() == "3456" && part.empty(), "the last slice keeps the owner");
    Bytes& same = inner;
    inner = same;
    expect(inner.view() == "3456", "a handle may be assigned to itself");
    swap(inner, part);
    expect(inner.empty() && part.size() == 4, "handles swap");
    part = Bytes();
    expect(watched.expired() && living_owners() == 0, "the owner is dropped with the last handle");
}

// A handle of another module: a struct with its own functions.
struct Foreign {
    int count = 1, retained = 0;
    char data[3] = {'a', 'b', 'c'};
};

void structs_of_other_modules_are_shared() {
    Foreign foreign;
    penstock_bytes_v1 handle{1,
                             0,
                             foreign.data,
                             sizeof(foreign.data),
                             &foreign,
                             [](void* owner) {
                                 static_cast<Foreign*>(owner)->count += 1;
                                 static_cast<Foreign*>(owner)->retained += 1;
                             },
                             [](void* owner) { static_cast<Foreign*>(owner)->count -= 1; }};
    {
        const Bytes shared = Bytes::share(handle);
        const Bytes copy = shared;
        expect(copy.view() == "abc" && !copy.readonly() && copy.data() == static_cast<void*>(foreign.data),
               "the struct's bytes are taken where they are");
        expect(foreign.count == 3 && foreign.retained == 2, "each handle holds the owner by its own functions");
        expect(copy.handle().owner == &foreign && living_owners() == 0, "and returns the same struct");
    }
    expect(foreign.count == 1, "each released it");
    handle.version = 2;
    expect(throws<std::invalid_argument>([&] { (void)Bytes::share(handle); }) && foreign.count == 1,
           "another version is refused");
}

void threads_share_and_drop() {
    constexpr int threads = 4, each = 5000;
    auto dropped = std::make_shared<std::atomic<int>>(0);
    Bytes whole(std::string(64, 'y'));
    Bytes watched("x", 1, std::shared_ptr<const void>(new char, [dropped](char* owner) {
                      dropped->fetch_add(1);
                      delete owner;
                  }));
    std::vector<std::thread> sharers;
    for (int thread = 0; thread < threads; ++thread) {
        sharers.emplace_back([whole, watched] {
            for (std::size_t i = 0; i < each; ++i) {
                const Bytes part = whole.slice(i % 64), copy = watched;
                if (part[0] != std::byte{'y'} || copy.size() != 1) std::abort();
            }
        });
    }
    whole = watched = Bytes();
    for (std::thread& sharer : sharers) sharer.join();
    expect(dropped->load() == 1 && living_owners() == 0, "the owner is dropped once, by whichever thread was last");
}

}  // namespace

int main() {
    containers_are_moved_in();
    nothing_is_a_place_too();
    slices_share_the_owner();
    structs_of_other_modules_are_shared();
    threads_share_and_drop();
    expect(living_owners() == 0, "no owner is left");
    std::printf("bytes: %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}

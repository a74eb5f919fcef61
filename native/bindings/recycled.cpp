// A handler of NumPy's for the memory of arrays, which keeps freed blocks for later arrays, and gives a block of ours
// to the array that it was offered for.
//
// A thread that has called `recycle_arrays` makes its arrays with it. NumPy frees an array by the handler that it was
// made with, on any thread; so the handler, and what it keeps, live as long as the process. NumPy calls handlers with
// the GIL held, and the program forks with it held, so that no child inherits a locked mutex.
//
// The module is built without NumPy's headers. The capsule `_ARRAY_API` has the functions of NumPy's C API, whose
// places never change, and the layout of a handler is a part of NumPy's stable binary interface (version 1).
#include "core/recycled.hpp"

#include "core/memory.hpp"
#include "core/offered.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

struct Allocator {
    void* context;
    void* (*malloc)(void* context, std::size_t size);
    void* (*calloc)(void* context, std::size_t count, std::size_t size);
    void* (*realloc)(void* context, void* block, std::size_t size);
    void (*free)(void* context, void* block, std::size_t size);
};

struct Handler {
    char name[127];
    std::uint8_t version;
    Allocator allocator;
};

constexpr std::size_t set_handler_at = 304, default_handler_at = 306;
constexpr const char* capsule_name = "mem_handler";

RecycledBlocks recycled;
OfferedBlock offered;
Allocator standard;  // NumPy's own, which makes the blocks

void* make(void*, std::size_t size) {
    if (void* const block = offered.take(size)) return block;
    void* const block = recycled.take(size);
    return block != nullptr ? block : standard.malloc(standard.context, RecycledBlocks::rounded(size));
}

void* make_zeroed(void*, std::size_t count, std::size_t size) {
    if (size == 1) {
        if (void* const block = offered.take(count)) return std::memset(block, 0, count);
    }
    if (size == 0 || count <= RecycledBlocks::largest / size) {
        if (void* const block = recycled.take(count * size)) return std::memset(block, 0, count * size);
        if (RecycledBlocks::keeps(count * size)) {
            return standard.calloc(standard.context, RecycledBlocks::rounded(count * size), 1);
        }
    }
    return standard.calloc(standard.context, count, size);
}

void* resize(void*, void* block, std::size_t size) {
    if (const std::size_t before = offered.size_of(block)) {
        void* const moved = standard.malloc(standard.context, RecycledBlocks::rounded(size));
        if (moved == nullptr) return nullptr;
        std::memcpy(moved, block, std::min(before, size));
        offered.give_back(block);
        return moved;
    }
    return standard.realloc(standard.context, block, RecycledBlocks::rounded(size));
}

void release(void*, void* block, std::size_t size) {
    if (block != nullptr && !offered.give_back(block) && !recycled.keep(block, size))
        standard.free(standard.context, block, size);
}

Handler handler{"penstock", 1, {nullptr, make, make_zeroed, resize, release}};

}  // namespace

void bind_recycled(nb::module_& module) {
    module.def(
        "recycle_arrays",
        [](nb::handle numpy) {
            const nb::object api = numpy.attr("_ARRAY_API");
            void** const functions = static_cast<void**>(PyCapsule_GetPointer(api.ptr(), nullptr));
            if (functions == nullptr) nb::raise_python_error();
            PyObject* const known = *static_cast<PyObject**>(functions[default_handler_at]);
            const void* const found = PyCapsule_GetPointer(known, capsule_name);
            if (found == nullptr) nb::raise_python_error();
            standard = static_cast<const Handler*>(found)->allocator;
            const nb::object capsule = nb::steal(PyCapsule_New(&handler, capsule_name, nullptr));
            if (!capsule.is_valid()) nb::raise_python_error();
            const auto set_handler = reinterpret_cast<PyObject* (*)(PyObject*)>(functions[set_handler_at]);
            const nb::object before = nb::steal(set_handler(capsule.ptr()));
            if (!before.is_valid()) nb::raise_python_error();
        },
        "numpy"_a, "Make the arrays of this thread's context from recycled blocks; `numpy` has NumPy's `_ARRAY_API`.");
    module.def(
        "allow_recycled", [](std::ptrdiff_t more_bytes) { recycled.allow(more_bytes); }, "more_bytes"_a,
        "Change the number of bytes without an array that this process keeps at most, which is 0 at first.");
    module.def(
        "offer_block",
        [](const Region& region, std::size_t start, std::size_t size_bytes) {
            if (start > region.size() || size_bytes > region.size() - start)
                throw std::out_of_range("the block must be inside the region");
            offered.offer(region.data() + start, size_bytes);
        },
        "region"_a, "start"_a, "size_bytes"_a,
        "Give a part of a region to the next array of exactly its size, made in a thread that has called "
        "recycle_arrays.");
    module.def("is_offer_free", [] { return offered.is_free(); }, "Return whether no array is in the offered block.");
    module.def(
        "end_offer", [] { return offered.end(); },
        "End the offer; return whether an array still uses the block, whose memory is then private and must stay "
        "mapped.");
    module.def(
        "recycled_bytes", [] { return recycled.bytes(); }, "Return the number of kept bytes that no array uses.");
}

}  // namespace penstock::bindings

// The system's zlib, zstd and xxHash: loaded at the first use, so that neither the build nor the import needs them.
//
// This header declares the used part of their stable interfaces, with this project's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace penstock {

// The system doesn't have the library; what() names it, and how to install it.
class LibraryMissing : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// zlib.h, version 1.
struct Zlib {
    struct Stream {
        const std::byte* next_in;
        unsigned int available_in;
        unsigned long total_in;
        std::byte* next_out;
        unsigned int available_out;
        unsigned long total_out;
        const char* message;  // of the last error, or null
        void* state;
        void* (*allocate)(void*, unsigned int, unsigned int);
        void (*deallocate)(void*, void*);
        void* opaque;
        int data_type;
        unsigned long checksum;
        unsigned long reserved;
    };
    enum Status : int { done = 0, stream_end = 1, needs_dictionary = 2, no_memory = -4, no_progress = -5 };

    int (*start)(Stream*, int window_bits, const char* version, int stream_bytes);
    int (*inflate)(Stream*, int flush);
    int (*restart)(Stream*);
    int (*end)(Stream*);
};

// zstd.h, version 1.
struct Zstd {
    struct Context;
    struct Input {
        const void* data;
        std::size_t size;
        std::size_t position;
    };
    struct Output {
        void* data;
        std::size_t size;
        std::size_t position;
    };
    // Special values of the size of a frame's content.
    static constexpr auto unknown_size = static_cast<unsigned long long>(-1);
    static constexpr auto no_frame = static_cast<unsigned long long>(-2);

    Context* (*make_context)();
    std::size_t (*drop_context)(Context*);
    std::size_t (*decompress)(Context*, Output*, Input*);  // 0 once a frame has ended and is written
    unsigned long long (*content_size)(const void*, std::size_t);
    unsigned int (*is_error)(std::size_t);
    const char* (*error_name)(std::size_t);
};

// xxhash.h, from version 0.8 on.
struct Xxhash {
    std::uint64_t (*xxh3_64)(const void*, std::size_t, std::uint64_t seed);
};

// Each throws LibraryMissing; the next call searches again. Loaded libraries stay loaded.
const Zlib& zlib();
const Zstd& zstd();
const Xxhash& xxhash();

}  // namespace penstock

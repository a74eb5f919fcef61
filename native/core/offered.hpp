// A block of memory that is offered for the next array of exactly its size, so that a result is made in its place.
//
// A user's function allocates its result; where that is known to be as large as the last one, the result's place in
// memory of ours is offered, and nothing has to be copied. Arrays that are freed before leave the block to the next
// one. If an array still uses the block when the offer ends, since the function keeps it, the block's pages become
// private memory of this process, with the same contents, so that later writes of other processes don't change it.
//
// One thread at a time calls the functions: in a process of Python, the one that holds the GIL.
#pragma once

#include <cstddef>
#include <vector>

namespace penstock {

class OfferedBlock {
  public:
    // Offers a block. It must stay mapped until `end`, and as long as the process runs if that returns true.
    void offer(void* block, std::size_t size);
    // The block, if an array of `size` bytes gets it; else nullptr.
    void* take(std::size_t size);
    // Whether this is the block, or was it when an offer ended; then no array uses it any more.
    bool give_back(void* block);
    // The size of such a block that is in use; 0 for any other memory.
    std::size_t size_of(const void* block) const;
    // Whether no array is in the offered block.
    bool is_free() const { return !is_taken_; }
    // Ends the offer; returns whether an array still uses the block. std::system_error if the system has no memory.
    bool end();

  private:
    struct Block {
        void* start;
        std::size_t size;
    };

    Block offered_{nullptr, 0};
    bool is_taken_ = false;
    int process_ = 0;  // in a fork of it, arrays must not get the block, which the two share
    std::vector<Block> kept_;
};

}  // namespace penstock

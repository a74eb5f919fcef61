// Packing documents into rows of one length: which bin each document goes to, and the rows' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Where the results of `BestFit::assign` go: each has room for one value per document.
struct Assigned {
    std::int64_t* bins;           // of each document: the number of its bin
    std::int64_t* closed;         // numbers of closed bins, in the order of closing
    std::int64_t* closed_before;  // of each closed bin: how many of the documents were assigned when it closed
};

// Streaming best fit over a bounded number of open bins. A document has a length, and a bin has room, in each of one or
// more features. Bins are numbered in the order in which they are opened.
//
// A document goes to the open bin with the least room (in all features together) among those where every feature fits,
// the oldest of equals. Where none is left, it opens a bin; if that would be one too many, the bin with the least room,
// the oldest of equals, is closed before. A bin without room, or with `most_documents`, closes at once; a document that
// needs a bin of its own this way closes no other.
//
// Open bins lie in the order of their room, so that one search finds the best of them, and a bin that got a document
// moves past those that have more room than it then. What happens depends on rooms, counts and the order of opening
// alone: bins opened anew as they were continue in the same way.
class BestFit {
  public:
    // Throws std::invalid_argument unless there are features, each capacity is at least 0, their sum is in [1, 2**63),
    // `bins` is in [1, 2**31) and `most_documents` is at least 0, which means no bound.
    BestFit(std::span<const std::int64_t> capacity, std::int64_t bins, std::int64_t most_documents);

    // Opens the next bin, which holds `documents` and has `room` left in each feature.
    // Throws std::invalid_argument where it would be closed already, no such bin can be, or one too many is open.
    void open(std::span<const std::int64_t> room, std::int64_t documents);

    // Assigns documents, whose lengths lie one document after another, and returns how many bins were closed.
    // Throws std::out_of_range, before anything is assigned, where a length isn't in [0, capacity] or a document has 0
    // in all features.
    std::size_t assign(std::span<const std::int64_t> lengths, const Assigned& out);

    std::size_t features() const noexcept { return capacity_.size(); }
    std::size_t open_bins() const noexcept { return by_room_.size(); }

    // Writes the open bins, oldest first: their numbers, documents, and rooms (a bin's features one after another).
    void open_bins(std::int64_t* numbers, std::int64_t* documents, std::int64_t* room) const;

  private:
    using Slot = std::uint32_t;  // where an open bin's values are; a closed bin's is used again

    void check(std::span<const std::int64_t> lengths) const;
    bool fits(Slot slot, const std::int64_t* lengths) const noexcept;
    bool done(std::int64_t room, std::int64_t documents) const noexcept;
    std::size_t place_of(std::int64_t room, std::int64_t number, std::size_t begin, std::size_t end) const noexcept;
    Slot take_slot();
    void insert(Slot slot, std::int64_t room);
    void erase(std::size_t place) noexcept;
    void move_down(std::size_t place, std::int64_t room) noexcept;
    void fill_slot(Slot slot, std::int64_t number, std::int64_t documents) noexcept;
    template <bool OneFeature>
    std::size_t assign_all(std::span<const std::int64_t> lengths, const Assigned& out);

    std::vector<std::int64_t> capacity_;
    std::int64_t whole_ = 0;  // the room of an empty bin
    std::size_t most_bins_;
    std::int64_t most_documents_;
    std::int64_t next_number_ = 0;

    // The open bins by (room, number), ascending, in two arrays so that a search reads rooms alone.
    std::vector<std::int64_t> by_room_;
    std::vector<Slot> slots_;

    // By slot; rooms by slot and feature, which are kept only where there are several features.
    std::vector<std::int64_t> numbers_;
    std::vector<std::int64_t> documents_;
    std::vector<std::int64_t> rooms_;
    std::vector<Slot> unused_;
};

// Consecutive tokens of a document, which become a piece of a row.
struct RowPiece {
    const std::byte* tokens;
    std::int64_t length;  // in tokens; 0 counts as a piece all the same
};

// Rows of `capacity` tokens, one after another. `segment_ids` and `positions` may be null.
struct PackedRows {
    std::byte* tokens;
    std::int32_t* segment_ids;  // of each token: its piece's number in the row, from 1; 0 behind the last piece
    std::int32_t* positions;    // of each token: its place in its piece, from 0; 0 behind the last piece
    std::int64_t capacity;
    std::size_t token_bytes;
    const std::byte* padding;  // the token behind the last piece
};

// Writes rows whole: row i is pieces[bounds[i]] to pieces[bounds[i + 1]], end to end, and padding after them. No piece
// overlaps the rows.
// Throws std::invalid_argument, before anything is written, where bounds don't ascend from 0 to the number of pieces, a
// length is negative or the pieces of a row are longer than the capacity.
void fill_rows(std::span<const RowPiece> pieces, std::span<const std::int64_t> bounds, const PackedRows& out);

}  // namespace penstock

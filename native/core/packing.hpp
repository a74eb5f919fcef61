// Packing documents into rows of one length: the bin of each document, and the rows' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The outputs of `BestFit::assign`; each has room for one value per document.
struct Assigned {
    std::int64_t* bins;           // of each document: the number of its bin
    std::int64_t* closed;         // numbers of closed bins, in the order of closing
    std::int64_t* closed_before;  // of each closed bin: the number of documents assigned when it closed
};

// Streaming best fit over a bounded number of open bins. A document has a length, and a bin has room, in each of one or
// more features. Bins are numbered in the order in which they are opened.
//
// A document is assigned to the open bin with the least room (in all features together) among those where every feature
// fits; of equals, to the oldest. If there is none, it opens a bin; if that would be one too many, the bin with the
// least room, of equals the oldest, is closed first. A bin without room, or with `max_documents`, closes at once; a
// document that fills a new bin in this way closes no other.
//
// Open bins are sorted by their room, so that one search finds the best, and a bin that got a document moves down past
// those with more room. The result depends only on rooms, counts and the order of opening: bins that are opened again
// with the same values continue in the same way.
class BestFit {
  public:
    // Throws std::invalid_argument unless there are features, each capacity is at least 0, their sum is in [1, 2**63),
    // `bins` is in [1, 2**31) and `max_documents` is at least 0, which means no bound.
    BestFit(std::span<const std::int64_t> capacity, std::int64_t bins, std::int64_t max_documents);

    // Opens the next bin, which holds `documents` and has `room` left in each feature.
    // Throws std::invalid_argument if the bin would be closed already, is impossible, or would be one too many.
    void open(std::span<const std::int64_t> room, std::int64_t documents);

    // Assigns documents, whose lengths are given one document after another, and returns the number of bins closed.
    // Throws std::out_of_range, before anything is assigned, if a length isn't in [0, capacity] or a document has 0 in
    // all features.
    std::size_t assign(std::span<const std::int64_t> lengths, const Assigned& out);

    std::size_t features() const noexcept { return capacity_.size(); }
    std::size_t open_bins() const noexcept { return by_room_.size(); }

    // Writes the open bins, oldest first: their numbers, documents, and rooms (a bin's features one after another).
    void open_bins(std::int64_t* numbers, std::int64_t* documents, std::int64_t* room) const;

  private:
    using Slot = std::uint32_t;  // the index of an open bin's values; it is used again after the bin is closed

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
    std::size_t max_bins_;
    std::int64_t max_documents_;
    std::int64_t next_number_ = 0;

    // The open bins by (room, number), ascending, in two arrays, so that a search reads only rooms.
    std::vector<std::int64_t> by_room_;
    std::vector<Slot> slots_;

    // By slot; rooms by slot and feature, kept only for several features.
    std::vector<std::int64_t> numbers_;
    std::vector<std::int64_t> documents_;
    std::vector<std::int64_t> rooms_;
    std::vector<Slot> unused_;
};

// Consecutive tokens of a document, which become a piece of a row.
struct RowPiece {
    const std::byte* tokens;
    std::int64_t length;  // in tokens; 0 is a piece, too
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

// Writes whole rows: row i is pieces[bounds[i]] to pieces[bounds[i + 1]], end to end, and padding after them. No piece
// may overlap the rows.
// Throws std::invalid_argument, before anything is written, if bounds don't ascend from 0 to the number of pieces, a
// length is negative, or the pieces of a row are longer than the capacity.
void fill_rows(std::span<const RowPiece> pieces, std::span<const std::int64_t> bounds, const PackedRows& out);

}  // namespace penstock

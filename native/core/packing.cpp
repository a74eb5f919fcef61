#include "core/packing.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace penstock {

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::int64_t sum(const std::int64_t* values, std::size_t count) noexcept {
    return std::accumulate(values, values + count, std::int64_t{0});
}

// The first of ascending values that is at least `least`. A binary search without branches, since no processor predicts
// where a document fits.
std::size_t first_at_least(const std::int64_t* values, std::size_t count, std::int64_t least) noexcept {
    if (count == 0) {
        return 0;
    }
    const std::int64_t* begin = values;
    while (count > 1) {
        const std::size_t half = count / 2;
        begin += begin[half - 1] < least ? half : 0;
        count -= half;
    }
    return static_cast<std::size_t>(begin - values) + (*begin < least ? 1 : 0);
}

}  // namespace

BestFit::BestFit(std::span<const std::int64_t> capacity, std::int64_t bins, std::int64_t max_documents)
    : capacity_(capacity.begin(), capacity.end()),
      max_bins_(static_cast<std::size_t>(bins)),
      max_documents_(max_documents) {
    for (const std::int64_t room : capacity_) {
        if (room < 0 || room > kMax - whole_) {
            throw std::invalid_argument("capacities must be at least 0, and their sum below 2**63");
        }
        whole_ += room;
    }
    if (whole_ == 0) {
        throw std::invalid_argument("a bin must have room");
    }
    if (bins < 1 || bins > std::numeric_limits<std::int32_t>::max() || max_documents < 0) {
        throw std::invalid_argument("bins must be in [1, 2**31), and max_documents at least 0");
    }
}

void BestFit::open(std::span<const std::int64_t> room, std::int64_t documents) {
    bool possible = room.size() == features() && documents >= 0 && open_bins() < max_bins_;
    for (std::size_t feature = 0; possible && feature < features(); ++feature) {
        possible = room[feature] >= 0 && room[feature] <= capacity_[feature];
    }
    if (!possible || done(sum(room.data(), room.size()), documents)) {
        throw std::invalid_argument("an open bin must have room, within the capacity, for another document");
    }
    const Slot slot = take_slot();
    fill_slot(slot, next_number_++, documents);
    if (features() > 1) {
        std::copy(room.begin(), room.end(), rooms_.begin() + static_cast<std::ptrdiff_t>(slot * features()));
    }
    insert(slot, sum(room.data(), room.size()));
}

std::size_t BestFit::assign(std::span<const std::int64_t> lengths, const Assigned& out) {
    check(lengths);
    return features() == 1 ? assign_all<true>(lengths, out) : assign_all<false>(lengths, out);
}

template <bool OneFeature>
std::size_t BestFit::assign_all(std::span<const std::int64_t> lengths, const Assigned& out) {
    const std::size_t width = OneFeature ? 1 : features();
    const std::size_t count = lengths.size() / width;
    std::size_t closed = 0;
    const auto close = [&](std::int64_t number, std::size_t before) {
        out.closed[closed] = number;
        out.closed_before[closed] = static_cast<std::int64_t>(before);
        ++closed;
    };
    for (std::size_t document = 0; document < count; ++document) {
        const std::int64_t* length = lengths.data() + document * width;
        const std::int64_t needed = sum(length, width);
        std::size_t place = first_at_least(by_room_.data(), by_room_.size(), needed);
        if constexpr (!OneFeature) {
            while (place < slots_.size() && !fits(slots_[place], length)) {
                ++place;
            }
        }
        if (place < slots_.size()) {
            const Slot slot = slots_[place];
            out.bins[document] = numbers_[slot];
            const std::int64_t room = by_room_[place] - needed;
            if (done(room, ++documents_[slot])) {
                close(numbers_[slot], document + 1);
                erase(place);
                continue;
            }
            if constexpr (!OneFeature) {
                std::int64_t* rooms = rooms_.data() + slot * width;
                std::transform(rooms, rooms + width, length, rooms, std::minus<>());
            }
            move_down(place, room);
            continue;
        }
        const std::int64_t number = next_number_++;
        const std::int64_t room = whole_ - needed;
        out.bins[document] = number;
        if (done(room, 1)) {
            close(number, document + 1);
            continue;
        }
        if (open_bins() == max_bins_) {
            close(numbers_[slots_.front()], document);
            erase(0);
        }
        const Slot slot = take_slot();
        fill_slot(slot, number, 1);
        if constexpr (!OneFeature) {
            std::transform(capacity_.begin(), capacity_.end(), length, rooms_.data() + slot * width, std::minus<>());
        }
        insert(slot, room);
    }
    return closed;
}

void BestFit::open_bins(std::int64_t* numbers, std::int64_t* documents, std::int64_t* room) const {
    std::vector<std::size_t> places(open_bins());
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::sort(places.begin(), places.end(),
              [this](std::size_t one, std::size_t other) { return numbers_[slots_[one]] < numbers_[slots_[other]]; });
    for (const std::size_t place : places) {
        const Slot slot = slots_[place];
        *numbers++ = numbers_[slot];
        *documents++ = documents_[slot];
        if (features() == 1) {
            *room++ = by_room_[place];
        } else {
            room = std::copy_n(rooms_.data() + slot * features(), features(), room);
        }
    }
}

void BestFit::check(std::span<const std::int64_t> lengths) const {
    const std::size_t width = features();
    if (lengths.size() % width != 0) {
        throw std::invalid_argument("a document must have a length in every feature");
    }
    for (std::size_t begin = 0; begin < lengths.size(); begin += width) {
        std::int64_t any = 0;
        for (std::size_t feature = 0; feature < width; ++feature) {
            const std::int64_t length = lengths[begin + feature];
            any |= length;
            if (length < 0 || length > capacity_[feature]) {
                throw std::out_of_range("a length must be in [0, " + std::to_string(capacity_[feature]) + "]; got " +
                                        std::to_string(length));
            }
        }
        if (any == 0) {
            throw std::out_of_range("a document must have a token");
        }
    }
}

bool BestFit::fits(Slot slot, const std::int64_t* lengths) const noexcept {
    const std::int64_t* rooms = rooms_.data() + slot * features();
    return std::equal(lengths, lengths + features(), rooms, std::less_equal<>());
}

bool BestFit::done(std::int64_t room, std::int64_t documents) const noexcept {
    return room == 0 || (max_documents_ > 0 && documents >= max_documents_);
}

// The place of a bin among the open ones in [begin, end), which are sorted.
std::size_t BestFit::place_of(std::int64_t room, std::int64_t number, std::size_t begin,
                              std::size_t end) const noexcept {
    std::size_t place = begin + first_at_least(by_room_.data() + begin, end - begin, room);
    if (place < end && by_room_[place] == room) {
        const std::size_t after = begin + first_at_least(by_room_.data() + begin, end - begin, room + 1);
        const Slot* equals = slots_.data();
        place = static_cast<std::size_t>(
            std::lower_bound(equals + place, equals + after, number,
                             [this](Slot slot, std::int64_t value) { return numbers_[slot] < value; }) -
            equals);
    }
    return place;
}

BestFit::Slot BestFit::take_slot() {
    if (!unused_.empty()) {
        const Slot slot = unused_.back();
        unused_.pop_back();
        return slot;
    }
    const auto slot = static_cast<Slot>(numbers_.size());
    numbers_.push_back(0);
    documents_.push_back(0);
    rooms_.resize(features() > 1 ? rooms_.size() + features() : 0);
    unused_.reserve(numbers_.size());  // so that closing a bin cannot fail
    return slot;
}

void BestFit::fill_slot(Slot slot, std::int64_t number, std::int64_t documents) noexcept {
    numbers_[slot] = number;
    documents_[slot] = documents;
}

void BestFit::insert(Slot slot, std::int64_t room) {
    const auto place = static_cast<std::ptrdiff_t>(place_of(room, numbers_[slot], 0, open_bins()));
    by_room_.insert(by_room_.begin() + place, room);
    slots_.insert(slots_.begin() + place, slot);
}

void BestFit::erase(std::size_t place) noexcept {
    unused_.push_back(slots_[place]);
    by_room_.erase(by_room_.begin() + static_cast<std::ptrdiff_t>(place));
    slots_.erase(slots_.begin() + static_cast<std::ptrdiff_t>(place));
}

// Gives the bin at `place` less room, and moves it to its place in the order.
void BestFit::move_down(std::size_t place, std::int64_t room) noexcept {
    const Slot slot = slots_[place];
    const std::size_t target = place_of(room, numbers_[slot], 0, place);
    std::copy_backward(by_room_.data() + target, by_room_.data() + place, by_room_.data() + place + 1);
    std::copy_backward(slots_.data() + target, slots_.data() + place, slots_.data() + place + 1);
    by_room_[target] = room;
    slots_[target] = slot;
}

namespace {

void check(std::span<const RowPiece> pieces, std::span<const std::int64_t> bounds, std::int64_t capacity) {
    const auto count = static_cast<std::int64_t>(pieces.size());
    if (bounds.empty() || bounds.front() != 0 || bounds.back() != count ||
        !std::is_sorted(bounds.begin(), bounds.end())) {
        throw std::invalid_argument("bounds must ascend from 0 to the number of pieces, " + std::to_string(count));
    }
    for (std::size_t row = 0; row + 1 < bounds.size(); ++row) {
        std::int64_t room = capacity;
        for (auto piece = static_cast<std::size_t>(bounds[row]); piece < static_cast<std::size_t>(bounds[row + 1]);
             ++piece) {
            const std::int64_t length = pieces[piece].length;
            if (length < 0 || length > room) {
                throw std::invalid_argument("the pieces of row " + std::to_string(row) + " must have at most " +
                                            std::to_string(capacity) + " tokens, and none a negative length");
            }
            room -= length;
        }
    }
}

// Repeats a token of any size; each copy doubles the part that is written.
void repeat(const std::byte* token, std::size_t token_bytes, std::byte* out, std::size_t bytes) noexcept {
    if (bytes == 0) {
        return;
    }
    std::memcpy(out, token, token_bytes);
    for (std::size_t done = token_bytes; done < bytes;) {
        const std::size_t more = std::min(done, bytes - done);
        std::memcpy(out + done, out, more);
        done += more;
    }
}

void fill_tokens(std::span<const RowPiece> pieces, const PackedRows& out, std::byte* row) noexcept {
    std::byte* const end = row + static_cast<std::size_t>(out.capacity) * out.token_bytes;
    for (const RowPiece& piece : pieces) {
        const std::size_t bytes = static_cast<std::size_t>(piece.length) * out.token_bytes;
        if (bytes > 0) {  // an empty piece may have no memory
            std::memcpy(row, piece.tokens, bytes);
        }
        row += bytes;
    }
    repeat(out.padding, out.token_bytes, row, static_cast<std::size_t>(end - row));
}

void number_segments(std::span<const RowPiece> pieces, std::int64_t capacity, std::int32_t* row) noexcept {
    std::int32_t* const end = row + capacity;
    std::int32_t number = 0;
    for (const RowPiece& piece : pieces) {
        row = std::fill_n(row, piece.length, ++number);
    }
    std::fill(row, end, 0);
}

// `counted` is the longest piece whose tokens were numbered; to copy its numbers takes half the time of counting.
void number_positions(std::span<const RowPiece> pieces, std::int64_t capacity, std::int32_t* row,
                      std::span<const std::int32_t>& counted) noexcept {
    std::int32_t* const end = row + capacity;
    for (const RowPiece& piece : pieces) {
        const auto length = static_cast<std::size_t>(piece.length);
        if (length <= counted.size()) {
            std::copy_n(counted.begin(), length, row);
        } else {
            std::iota(row, row + length, 0);
            counted = {row, length};
        }
        row += length;
    }
    std::fill(row, end, 0);
}

}  // namespace

void fill_rows(std::span<const RowPiece> pieces, std::span<const std::int64_t> bounds, const PackedRows& out) {
    check(pieces, bounds, out.capacity);
    std::span<const std::int32_t> counted;
    for (std::size_t row = 0; row + 1 < bounds.size(); ++row) {
        const auto own = pieces.subspan(static_cast<std::size_t>(bounds[row]),
                                        static_cast<std::size_t>(bounds[row + 1] - bounds[row]));
        const std::size_t begin = row * static_cast<std::size_t>(out.capacity);
        fill_tokens(own, out, out.tokens + begin * out.token_bytes);
        if (out.segment_ids != nullptr) {
            number_segments(own, out.capacity, out.segment_ids + begin);
        }
        if (out.positions != nullptr) {
            number_positions(own, out.capacity, out.positions + begin, counted);
        }
    }
}

}  // namespace penstock

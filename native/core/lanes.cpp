#include "core/lanes.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

namespace penstock {
namespace {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15ULL;
constexpr std::uint64_t integer_tag = 0x243F6A8885A308D3ULL;
constexpr std::uint64_t nothing = std::numeric_limits<std::uint64_t>::max();

// One step of `derive` (penstock._seeds) by an integer.
std::uint64_t derived(std::uint64_t state, std::uint64_t part) {
    return SplitMix::mix(state ^ SplitMix::mix(part + integer_tag));
}

// floor(number * numerator / denominator) for number < denominator, without a product that overflows.
std::uint64_t share(std::uint64_t numerator, std::uint64_t number, std::uint64_t denominator) {
    return number * (numerator / denominator) + number * (numerator % denominator) / denominator;
}

}  // namespace

Lanes::Lanes(const Shape& shape, std::vector<std::int64_t> ends, std::vector<std::int64_t> begins,
             std::uint64_t piece_seed, std::uint64_t lane_seed)
    : shape_(shape),
      ends_(std::move(ends)),
      begins_(std::move(begins)),
      piece_state_(SplitMix::mix(piece_seed + golden)),
      lane_state_(SplitMix::mix(lane_seed + golden)) {
    const bool whole = shape.columns > 0 && shape.lanes > 0 && shape.block > 0 && shape.rows > 0 &&
                       shape.rows % shape.columns == 0 && shape.lanes <= (1ULL << 31) && ends_.size() < (1ULL << 31);
    const bool increasing = std::adjacent_find(ends_.begin(), ends_.end(), std::greater_equal<>()) == ends_.end() &&
                            (ends_.empty() || ends_.front() > 0);
    const std::uint64_t total = ends_.empty() ? 0 : static_cast<std::uint64_t>(ends_.back());
    if (!whole || !increasing || ends_.size() != begins_.size() || total != shape.length) {
        throw std::invalid_argument("the pieces of a block shuffle must cover its length");
    }
    fill_directory();
}

void Lanes::fill_directory() {
    while ((shape_.length >> shift_) > ends_.size()) {
        ++shift_;
    }
    std::uint32_t piece = 0;
    for (std::uint64_t run = 0; run <= shape_.length >> shift_; ++run) {
        while (piece < ends_.size() && static_cast<std::uint64_t>(ends_[piece]) <= run << shift_) {
            ++piece;
        }
        directory_.push_back(piece);
    }
    directory_.push_back(static_cast<std::uint32_t>(ends_.size()));
}

std::size_t Lanes::piece_at(std::uint64_t at) const {
    const auto run = static_cast<std::size_t>(at >> shift_);
    const auto last = std::min<std::ptrdiff_t>(directory_[run + 1] + 1, static_cast<std::ptrdiff_t>(ends_.size()));
    const auto found =
        std::upper_bound(ends_.begin() + directory_[run], ends_.begin() + last, static_cast<std::int64_t>(at));
    return static_cast<std::size_t>(found - ends_.begin());
}

std::size_t Lanes::keys_at(std::span<const std::int64_t> positions, std::span<std::int64_t> keys) const {
    assert(keys.size() == positions.size());
    Round round{nothing, nothing, nothing, {}};
    for (std::size_t i = 0; i < positions.size(); ++i) {
        const auto position = static_cast<std::uint64_t>(positions[i]);
        if (position >= shape_.length) {
            return i;
        }
        keys[i] = key_at(position, round);
    }
    return positions.size();
}

std::int64_t Lanes::key_at(std::uint64_t position, Round& round) const {
    const std::uint64_t width = shape_.rows / shape_.columns;  // rows of a column in a batch
    const std::uint64_t batches = shape_.length / shape_.rows;
    const std::uint64_t rest = shape_.length % shape_.rows;
    const std::uint64_t row = position % shape_.rows;
    const std::uint64_t column = row / width;
    const std::uint64_t place = position / shape_.rows * width + row % width;  // within the column
    const std::uint64_t before = std::min(rest, column * width);               // of the last batch, in earlier columns
    const std::uint64_t column_start = column * width * batches + before;
    const std::uint64_t column_length = width * batches + std::min(rest - before, width);

    const std::uint64_t least = column_length / shape_.lanes;  // the length of a lane, or one less
    const std::uint64_t longer = column_length % shape_.lanes;
    const std::uint64_t number = place / shape_.lanes;
    const std::uint64_t in_round = number < least ? shape_.lanes : longer;
    const std::uint64_t lane = lane_of(column, number, in_round, place % shape_.lanes, round);
    const std::uint64_t lane_start = column_start + lane * least + std::min(lane, longer);
    const std::uint64_t lane_length = least + (lane < longer ? 1 : 0);

    const std::uint64_t phase = share(shape_.block, lane, shape_.lanes) % lane_length;
    const std::uint64_t ahead = lane_length - phase;
    const bool wrapped = number >= ahead;
    const std::uint64_t side_start = wrapped ? lane_start : lane_start + phase;
    const std::uint64_t side_end = wrapped ? lane_start + phase : lane_start + lane_length;
    const std::uint64_t at = side_start + (wrapped ? number - ahead : number);

    const std::size_t piece = piece_at(at);
    const std::uint64_t piece_start = piece == 0 ? 0 : static_cast<std::uint64_t>(ends_[piece - 1]);
    const std::uint64_t start = std::max(piece_start, side_start);
    const std::uint64_t end = std::min(static_cast<std::uint64_t>(ends_[piece]), side_end);
    const std::int64_t begin = begins_[piece] + static_cast<std::int64_t>(start - piece_start);
    if (end - start == 1) {
        return begin;
    }
    const FeistelNetwork network = make_network(end - start, derived(piece_state_, static_cast<std::uint64_t>(begin)));
    return begin + walk<Direction::forward>(network, end - start, static_cast<std::int64_t>(at - start));
}

std::uint64_t Lanes::lane_of(std::uint64_t column, std::uint64_t number, std::uint64_t lanes, std::uint64_t turn,
                             Round& round) const {
    if (lanes == 1) {
        return 0;
    }
    if (round.column != column || round.number != number || round.lanes != lanes) {
        round = {column, number, lanes, make_network(lanes, derived(derived(lane_state_, column), number))};
    }
    return static_cast<std::uint64_t>(walk<Direction::forward>(round.network, lanes, static_cast<std::int64_t>(turn)));
}

}  // namespace penstock

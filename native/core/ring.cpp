#include "core/ring.hpp"

#include <stdexcept>
#include <utility>

namespace penstock {

namespace {

// Identifies a ring's memory: eight letters, the last of which is the version of layout and protocol.
constexpr std::uint64_t format = 0x31676E69724E4550;  // "PENring1" in little endian

// A region's words need no construction: a new region is all zero, and so is a new word.
AtomicWord* words_of(const Region& region) { return reinterpret_cast<AtomicWord*>(region.data()); }

std::shared_ptr<AtomicWord> bell_word(const std::shared_ptr<Region>& region) {
    return {region, words_of(*region) + RingLayout::rung};
}

std::size_t size_bytes(const RingLayout& layout) { return layout.size() * sizeof(AtomicWord); }

void write_header(const Region& region, const RingLayout& layout) {
    words_of(region)[RingLayout::capacity_word].store(layout.capacity);
    words_of(region)[RingLayout::blocks_word].store(layout.blocks);
    words_of(region)[RingLayout::format].store(format);
}

RingLayout read_header(const Region& region) {
    if (region.size() < RingLayout::header * sizeof(AtomicWord)) {
        throw std::invalid_argument("the memory is too small to hold a ring");
    }
    if (!words_of(region)[RingLayout::format].equals(format)) {
        throw std::invalid_argument("the memory holds no ring, or one of another version of Penstock");
    }
    const RingLayout layout{words_of(region)[RingLayout::capacity_word].load(),
                            words_of(region)[RingLayout::blocks_word].load()};
    if (layout.capacity < 1 || layout.capacity > RingWords::max_slots || layout.blocks < 1 ||
        layout.blocks > RingWords::max_blocks || size_bytes(layout) > region.size()) {
        throw std::invalid_argument("the memory holds a ring of an impossible size");
    }
    return layout;
}

}  // namespace

Ring::Ring(std::uint64_t capacity, std::uint64_t blocks, std::shared_ptr<Bell> bell)
    : Ring(std::make_shared<Region>(size_bytes({capacity, blocks}), false), {capacity, blocks}, std::move(bell)) {
    write_header(*region_memory_, layout());
}

Ring::Ring(std::shared_ptr<Region> region, RingLayout layout, std::shared_ptr<Bell> bell)
    : RingProtocol(words_of(*region), layout),
      region_memory_(std::move(region)),
      sleeper_(region_memory_->descriptor() >= 0),
      resting_(region_memory_->descriptor() >= 0),
      bell_(std::move(bell)) {}

void Ring::stop() {
    RingProtocol::stop();
    resting_.wake(word(RingLayout::stopped), RingWords::all);
}

std::unique_ptr<Ring> Ring::create_shared(std::uint64_t capacity, std::uint64_t blocks) {
    const RingLayout layout{capacity, blocks};
    auto region = Region::create_shared(size_bytes(layout));
    auto bell = std::make_shared<Bell>(bell_word(region));
    write_header(*region, layout);
    return std::unique_ptr<Ring>(new Ring(std::move(region), layout, std::move(bell)));
}

std::unique_ptr<Ring> Ring::attach(int memory, int bell) {
    auto region = Region::open_shared(memory);
    const RingLayout layout = read_header(*region);
    auto rung = std::make_shared<Bell>(bell_word(region), bell);
    return std::unique_ptr<Ring>(new Ring(std::move(region), layout, std::move(rung)));
}

}  // namespace penstock

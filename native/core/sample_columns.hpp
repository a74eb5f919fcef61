// The columns of a sample of MosaicML Streaming's shards (MDS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

// The sizes of the columns. A sample is the sizes of its varying columns, as uint32 numbers, and then the columns. All
// numbers are little-endian, as those of the processors are.
class SampleColumns {
  public:
    // Throws std::invalid_argument if a size exceeds the largest one that a sample may have.
    explicit SampleColumns(std::vector<std::uint64_t> sizes);  // 0: it varies

    std::size_t count() const noexcept { return sizes_.size(); }

    // Returns whether the columns are all of `sample`.
    bool fit(std::string_view sample) const noexcept;

    // Calls `visit` with the number and the bytes of each column of a sample that they fit, until it returns false.
    // Returns whether none did.
    template <typename Visit>
    bool each(std::string_view sample, Visit&& visit) const {
        std::size_t varying = 0;
        std::size_t begin = varying_bytes_;
        for (std::size_t column = 0; column < sizes_.size(); ++column) {
            const std::uint64_t size = sizes_[column] != 0 ? sizes_[column] : size_of(sample, varying++);
            if (!visit(column, sample.substr(begin, size))) return false;
            begin += size;
        }
        return true;
    }

  private:
    static std::uint32_t size_of(std::string_view sample, std::size_t varying) noexcept {
        std::uint32_t size;
        std::memcpy(&size, sample.data() + varying * sizeof(size), sizeof(size));
        return size;
    }

    std::vector<std::uint64_t> sizes_;
    std::size_t varying_bytes_ = 0;  // of the sizes
    std::uint64_t fixed_bytes_ = 0;
};

}  // namespace penstock

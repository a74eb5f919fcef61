#include "core/sample_columns.hpp"

#include <limits>
#include <stdexcept>

namespace penstock {

SampleColumns::SampleColumns(std::vector<std::uint64_t> sizes) : sizes_(std::move(sizes)) {
    for (const std::uint64_t size : sizes_) {
        if (size > std::numeric_limits<std::uint32_t>::max()) {
            throw std::invalid_argument("a column's size must be below 4 GiB");
        }
        varying_bytes_ += size == 0 ? sizeof(std::uint32_t) : 0;
        fixed_bytes_ += size;
    }
}

bool SampleColumns::fit(std::string_view sample) const noexcept {
    if (sample.size() < varying_bytes_) return false;
    std::uint64_t bytes = varying_bytes_ + fixed_bytes_;
    for (std::size_t varying = 0; varying < varying_bytes_ / sizeof(std::uint32_t); ++varying) {
        bytes += size_of(sample, varying);
    }
    return bytes == sample.size();
}

}  // namespace penstock

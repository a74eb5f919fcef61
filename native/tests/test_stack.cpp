// Rows are copied in order, whatever their size, and nothing beside them is touched.
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/stack.hpp"

namespace {

int failures = 0;

void expect(bool holds, const char* promise, std::size_t row_bytes, std::size_t rows) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s (row_bytes=%zu, rows=%zu)\n", promise, row_bytes, rows);
        ++failures;
    }
}

std::byte value_at(std::size_t row, std::size_t offset) {
    return static_cast<std::byte>((row * 31 + offset * 7 + 1) & 0xff);
}

void check_copy(std::size_t row_bytes, std::size_t rows, std::size_t num_threads) {
    constexpr std::size_t margin = 16;
    constexpr std::byte untouched{0xee};
    std::vector<std::vector<std::byte>> values(rows, std::vector<std::byte>(row_bytes));
    std::vector<const void*> sources;
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t offset = 0; offset < row_bytes; ++offset) {
            values[row][offset] = value_at(row, offset);
        }
        sources.push_back(values[row].data());
    }
    std::vector<std::byte> destination(rows * row_bytes + 2 * margin, untouched);
    if (num_threads == 0) {
        penstock::copy_rows(sources, row_bytes, destination.data() + margin);
    } else {
        penstock::copy_rows_on_threads(sources, row_bytes, destination.data() + margin, num_threads);
    }
    bool equal = true;
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t offset = 0; offset < row_bytes; ++offset) {
            equal = equal && destination[margin + row * row_bytes + offset] == value_at(row, offset);
        }
    }
    expect(equal, "each row holds its source", row_bytes, rows);
    bool kept = true;
    for (std::size_t offset = 0; offset < margin; ++offset) {
        kept = kept && destination[offset] == untouched && destination[destination.size() - 1 - offset] == untouched;
    }
    expect(kept, "nothing beside the rows is written", row_bytes, rows);
}

void check_in_place() {
    std::vector<std::byte> rows(24, std::byte{5});
    const std::vector<const void*> sources{rows.data(), rows.data() + 8, rows.data() + 16};
    penstock::copy_rows(sources, 8, rows.data());
    penstock::copy_rows_on_threads(sources, 8, rows.data(), 2);
    expect(rows == std::vector<std::byte>(24, std::byte{5}), "a row may be its own source", 8, 3);
}

void check_empty_rows() {
    const std::vector<const void*> sources{nullptr, nullptr};
    std::byte place{9};
    penstock::copy_rows(sources, 0, &place);
    penstock::copy_rows_on_threads(sources, 0, &place, 2);
    expect(place == std::byte{9}, "rows of no bytes are not read", 0, 2);
}

// Copies pixels of `size` bytes from a mirrored image with gaps, and with its axes in another order.
void check_strided(std::size_t size, std::ptrdiff_t width) {
    constexpr std::ptrdiff_t height = 3;
    constexpr std::byte untouched{0xee};
    const auto bytes = static_cast<std::ptrdiff_t>(size);
    const std::ptrdiff_t pixel = bytes + 2;
    const std::ptrdiff_t line = pixel * width + 5;
    std::vector<std::byte> image(static_cast<std::size_t>(line * height));
    for (std::size_t at = 0; at < image.size(); ++at) {
        image[at] = value_at(at, at / 7);
    }
    const std::ptrdiff_t end = (width - 1) * pixel;
    for (const bool is_transposed : {false, true}) {
        std::vector<std::ptrdiff_t> shape{height, width, bytes};
        std::vector<std::ptrdiff_t> strides{line, -pixel, 1};
        if (is_transposed) {
            std::swap(shape[0], shape[1]);
            std::swap(strides[0], strides[1]);
        }
        std::vector<std::byte> out(static_cast<std::size_t>(height * width * bytes) + 1, untouched);
        penstock::copy_strided({image.data() + end, shape, strides, 1}, out.data());
        bool equal = true;
        std::size_t place = 0;
        for (std::ptrdiff_t i = 0; i < shape[0]; ++i) {
            for (std::ptrdiff_t j = 0; j < shape[1]; ++j) {
                for (std::ptrdiff_t k = 0; k < bytes; ++k) {
                    const std::ptrdiff_t at = end + i * strides[0] + j * strides[1] + k;
                    equal = equal && out[place++] == image[static_cast<std::size_t>(at)];
                }
            }
        }
        expect(equal && out.back() == untouched, "items with any strides are copied", size, 1);
    }
}

void check_fill(std::size_t item_bytes, std::size_t items) {
    constexpr std::byte untouched{0xee};
    for (const bool is_uniform : {false, true}) {
        std::vector<std::byte> item(item_bytes, std::byte{9});
        for (std::size_t offset = 0; offset < item_bytes && !is_uniform; ++offset) {
            item[offset] = value_at(0, offset);
        }
        std::vector<std::byte> place(items * item_bytes + 1, untouched);
        penstock::fill_items({place.data(), items * item_bytes}, item);
        bool equal = true;
        for (std::size_t offset = 0; offset + 1 < place.size(); ++offset) {
            equal = equal && place[offset] == item[offset % item_bytes];
        }
        expect(equal && place.back() == untouched, "memory is filled with items", item_bytes, items);
    }
}

}  // namespace

int main() {
    for (std::size_t size = 1; size < 20; ++size) {
        for (const std::size_t items : {0, 1, 2, 3, 17}) {
            check_fill(size, items);
        }
    }
    for (std::size_t size = 1; size < 20; ++size) {
        for (const std::ptrdiff_t width : {1, 2, 8, 19}) {
            check_strided(size, width);
        }
    }
    for (const std::size_t row_bytes : {1, 2, 3, 4, 8, 63, 64, 65, 1000}) {
        for (const std::size_t rows : {0, 1, 2, 7, 33}) {
            check_copy(row_bytes, rows, 0);
            check_copy(row_bytes, rows, 3);
        }
    }
    // Rows that are cut by several threads, and threads that have several rows.
    for (const std::size_t row_bytes : {1365, 4096, 50001, 300000}) {
        for (const std::size_t num_threads : {1, 2, 3, 7, 64}) {
            check_copy(row_bytes, 5, num_threads);
        }
    }
    check_in_place();
    check_empty_rows();
    return failures == 0 ? 0 : 1;
}

// The guarantees of RowTable and MappedFile, checked against copies of single bytes.
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/gather.hpp"
#include "core/mapped_file.hpp"

namespace {

int failures = 0;

void expect(bool held, const char* promise) {
    if (!held) {
        std::fprintf(stderr, "FAILED: %s\n", promise);
        ++failures;
    }
}

std::vector<std::byte> numbered_bytes(std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i) {
        bytes[i] = static_cast<std::byte>((i * 167 + i / 251) & 0xFF);
    }
    return bytes;
}

void copies_every_row_size() {
    const std::vector<std::byte> memory = numbered_bytes(40'000);
    for (const std::size_t row_bytes : {1U, 2U, 3U, 4U, 5U, 8U, 16U, 63U, 64U, 65U, 300U, 1025U}) {
        for (const std::size_t stride_bytes : {row_bytes, row_bytes + 3, (row_bytes + 1) / 2}) {
            const auto rows = static_cast<std::int64_t>((memory.size() - row_bytes) / stride_bytes + 1);
            const penstock::Piece piece{memory.data(), rows};
            const penstock::RowTable table({&piece, 1}, row_bytes, stride_bytes);
            std::vector<std::int64_t> keys{0, rows - 1, rows / 2, 0, rows / 3};
            for (std::int64_t i = 0; i < 30; ++i) {
                keys.push_back((i * 7919) % rows);
            }
            std::vector<std::byte> out(keys.size() * row_bytes);
            table.gather(keys, out.data());
            bool equal = true;
            for (std::size_t i = 0; i < keys.size(); ++i) {
                for (std::size_t b = 0; b < row_bytes; ++b) {
                    equal =
                        equal && out[i * row_bytes + b] == memory[static_cast<std::size_t>(keys[i]) * stride_bytes + b];
                }
            }
            expect(equal, "rows of every size and stride are copied");
        }
    }
}

void numbers_rows_over_pieces() {
    const std::vector<std::byte> first = numbered_bytes(30);
    const std::vector<std::byte> second = numbered_bytes(300);
    const std::vector<penstock::Piece> pieces{
        {nullptr, 0}, {first.data(), 3}, {nullptr, 0}, {second.data() + 7, 20}, {second.data(), 1}, {nullptr, 0}};
    const penstock::RowTable table(pieces, 10, 10);
    expect(table.size() == 24, "a table has the rows of all pieces");
    const std::vector<std::int64_t> keys{0, 2, 3, 22, 23};
    std::vector<std::byte> out(keys.size() * 10);
    table.gather(keys, out.data());
    expect(out[0] == first[0] && out[10] == first[20], "the first piece comes first");
    expect(out[20] == second[7] && out[30] == second[7 + 190], "empty pieces take no key");
    expect(out[40] == second[0], "the last key is in the last piece that has rows");
}

void refuses_keys_outside() {
    const std::vector<std::byte> memory = numbered_bytes(100);
    const penstock::Piece piece{memory.data(), 10};
    const penstock::RowTable table({&piece, 1}, 10, 10);
    for (const std::int64_t outside : {std::int64_t{-1}, std::int64_t{10}, std::numeric_limits<std::int64_t>::min(),
                                       std::numeric_limits<std::int64_t>::max()}) {
        const std::vector<std::int64_t> keys{3, outside};
        std::vector<std::byte> out(20, std::byte{0xEE});
        std::string message;
        try {
            table.gather(keys, out.data());
        } catch (const std::out_of_range& error) {
            message = error.what();
        }
        expect(message == "a key must be in [0, 10); got " + std::to_string(outside), "a key outside is named");
        expect(out[0] == std::byte{0xEE}, "nothing is written where a key is outside");
    }
    const penstock::RowTable empty({}, 4, 4);
    empty.gather({}, nullptr);
    expect(empty.size() == 0, "a table of no pieces gathers no keys");
}

void refuses_bad_pieces() {
    const std::vector<penstock::Piece> negative{{nullptr, -1}};
    const std::vector<penstock::Piece> many{{nullptr, std::numeric_limits<std::int64_t>::max()}, {nullptr, 1}};
    for (const auto& pieces : {negative, many}) {
        bool refused = false;
        try {
            const penstock::RowTable table(pieces, 1, 1);
        } catch (const std::invalid_argument&) {
            refused = true;
        }
        expect(refused, "negative and overflowing numbers of rows are refused");
    }
}

void gathers_in_many_threads() {
    const std::vector<std::byte> memory = numbered_bytes(64 * 1000);
    const penstock::Piece piece{memory.data(), 1000};
    const penstock::RowTable table({&piece, 1}, 64, 64);
    std::vector<std::vector<std::byte>> outs(4, std::vector<std::byte>(64 * 1000));
    std::vector<std::int64_t> keys(1000);
    for (std::size_t i = 0; i < keys.size(); ++i) {
        keys[i] = static_cast<std::int64_t>(i);
    }
    std::vector<std::thread> threads;  // not jthread: Apple's library lacks it
    threads.reserve(outs.size());
    for (auto& out : outs) {
        threads.emplace_back([&table, &keys, &out] { table.gather(keys, out.data()); });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    for (const auto& out : outs) {
        expect(out == memory, "threads gather from one table at once");
    }
}

void finds_repeats() {
    expect(!penstock::has_repeats({}), "no keys have no repeats");
    std::vector<std::int64_t> keys;
    for (std::int64_t key = 0; key < 3000; ++key) {
        keys.push_back(key * (key % 3 == 0 ? -(std::int64_t{1} << 40) : 4096));
    }
    expect(!penstock::has_repeats(keys), "different keys have no repeats, however they are spread");
    for (const std::size_t place : {std::size_t{0}, std::size_t{1}, std::size_t{2998}}) {
        const std::int64_t kept = keys.back();
        keys.back() = keys[place];
        expect(penstock::has_repeats(keys), "a key that occurs twice is a repeat, wherever it is");
        keys.back() = kept;
    }
}

void maps_files() {
    std::string path = (std::filesystem::temp_directory_path() / "penstock-XXXXXX").string();
    ::close(::mkstemp(path.data()));
    const std::vector<std::byte> bytes = numbered_bytes(10'000);
    std::FILE* file = std::fopen(path.c_str(), "wb");
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
    {
        const penstock::MappedFile mapped(path);
        std::remove(path.c_str());
        expect(mapped.size() == bytes.size(), "a mapping has its file's size");
        bool equal = true;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            equal = equal && mapped.data()[i] == bytes[i];
        }
        expect(equal, "a mapping holds its file's bytes, also after the file's removal");
    }
    file = std::fopen(path.c_str(), "wb");
    std::fclose(file);
    {
        const penstock::MappedFile mapped(path);
        expect(mapped.size() == 0 && mapped.data() != nullptr, "an empty file is mapped as nothing");
    }
    std::remove(path.c_str());
    for (const auto& [bad, code] : {std::pair<std::string, int>{path, ENOENT}, {"/", EISDIR}}) {
        int seen = 0;
        try {
            const penstock::MappedFile mapped(bad);
        } catch (const std::system_error& error) {
            seen = error.code().value();
        }
        expect(seen == code, "a file that can't be mapped raises its errno");
    }
}

}  // namespace

int main() {
    copies_every_row_size();
    numbers_rows_over_pieces();
    refuses_keys_outside();
    refuses_bad_pieces();
    gathers_in_many_threads();
    finds_repeats();
    maps_files();
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

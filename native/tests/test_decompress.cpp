// The guarantees of decompress(), for streams and frames that are built here by hand: stored, raw and repeated blocks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/codecs.hpp"
#include "core/crc32.hpp"
#include "core/decompress.hpp"

namespace {

using penstock::Codec;
using Data = std::vector<std::byte>;

int failures = 0;

void expect(bool held, const std::string& promise) {
    if (!held) {
        std::fprintf(stderr, "FAILED: %s\n", promise.c_str());
        ++failures;
    }
}

Data numbered_bytes(std::size_t count) {
    Data bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 167 + i / 251) & 0xFF);
    return bytes;
}

void put(Data& out, std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

Data joined(const Data& first, const Data& second) {
    Data both(first);
    both.insert(both.end(), second.begin(), second.end());
    return both;
}

Data deflated(const Data& data) {
    constexpr std::size_t longest = 65'535;
    Data out;
    for (std::size_t start = 0; start == 0 || start < data.size(); start += longest) {
        const std::size_t size = std::min(longest, data.size() - start);
        put(out, start + size == data.size() ? 1 : 0, 1);
        put(out, size, 2);
        put(out, ~size, 2);
        out.insert(out.end(), data.begin() + static_cast<std::ptrdiff_t>(start),
                   data.begin() + static_cast<std::ptrdiff_t>(start + size));
    }
    return out;
}

Data encoded(Codec codec, const Data& data) {
    Data out;
    if (codec == Codec::deflate) return deflated(data);
    if (codec == Codec::zlib) {
        put(out, 0x0178, 2);
        out = joined(out, deflated(data));
        std::uint32_t a = 1, b = 0;
        for (const std::byte byte : data) {
            a = (a + static_cast<std::uint32_t>(byte)) % 65'521;
            b = (b + a) % 65'521;
        }
        for (const std::uint32_t part : {b >> 8, b, a >> 8, a}) put(out, part & 0xFF, 1);
        return out;
    }
    if (codec == Codec::gzip) {
        put(out, 0x088B1F, 4);
        put(out, 0, 6);
        out = joined(out, deflated(data));
        put(out, penstock::crc32(data), 4);
        put(out, data.size(), 4);
        return out;
    }
    constexpr std::size_t longest = 100'000;
    put(out, 0xFD2FB528, 4);
    put(out, 0b11100000, 1);  // one segment, whose size takes eight bytes
    put(out, data.size(), 8);
    for (std::size_t start = 0; start == 0 || start < data.size(); start += longest) {
        const std::size_t size = std::min(longest, data.size() - start);
        put(out, size << 3 | (start + size == data.size() ? 1 : 0), 3);
        out.insert(out.end(), data.begin() + static_cast<std::ptrdiff_t>(start),
                   data.begin() + static_cast<std::ptrdiff_t>(start + size));
    }
    return out;
}

// Ten bytes a block for 128 KiB of zeros, and no size in the header.
Data endless_frame(std::size_t num_blocks) {
    Data out;
    put(out, 0xFD2FB528, 4);
    put(out, 0, 1);
    put(out, 7 << 3, 1);  // a window of 128 KiB
    for (std::size_t block = 0; block < num_blocks; ++block) {
        put(out, std::size_t{131'072} << 3 | 1 << 1 | (block + 1 == num_blocks ? 1 : 0), 3);
        put(out, 0, 1);
    }
    return out;
}

bool fails(const std::function<void()>& function, const std::string& word = "") {
    try {
        function();
        return false;
    } catch (const penstock::DataError& error) {
        return std::string(error.what()).find(word) != std::string::npos;
    }
}

bool gives(Codec codec, const Data& source, const Data& data) {
    Data out(data.size());
    penstock::decompress_into(codec, source, out);
    const penstock::Bytes made = penstock::decompress(codec, source, data.size());
    const penstock::Bytes free = penstock::decompress(codec, source, std::uint64_t{1} << 40);
    return out == data && Data(made.begin(), made.end()) == data && Data(free.begin(), free.end()) == data;
}

void gives_what_was_encoded(Codec codec, const std::string& name) {
    for (const std::size_t size : {0, 1, 2, 1023, 1024, 1025, 65'535, 65'536, 200'000, 700'001}) {
        const Data data = numbered_bytes(size), source = encoded(codec, data);
        expect(gives(codec, source, data), name + " gives what was encoded");
        if (codec == Codec::gzip || codec == Codec::zstd) {
            const Data other = numbered_bytes(3000);
            expect(gives(codec, joined(source, encoded(codec, other)), joined(data, other)), name + " joins members");
        } else {
            expect(fails([&] { penstock::decompress(codec, joined(source, source), 2 * size + 1); }, "follow"),
                   name + " refuses what follows");
        }
        for (const std::size_t wrong : {size + 1, size + 2000, size / 2, size - (size > 0 ? 1 : 0)}) {
            if (wrong == size) continue;
            Data out(wrong);
            expect(fails([&] { penstock::decompress_into(codec, source, out); }, "exactly"), name + " checks the size");
            if (wrong > size) continue;
            expect(fails([&] { penstock::decompress(codec, source, wrong); }, "at most"), name + " checks the limit");
        }
    }
}

void refuses_what_is_cut_off_or_changed(Codec codec, const std::string& name) {
    const Data data = numbered_bytes(400), source = encoded(codec, data);
    for (std::size_t size = 0; size < source.size(); ++size) {
        const Data part(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(size));  // its end is watched
        Data out(data.size());
        expect(fails([&] { penstock::decompress(codec, part, 10'000); }), name + " refuses what is cut off");
        expect(fails([&] { penstock::decompress_into(codec, part, out); }), name + " refuses what is cut off");
    }
    for (std::size_t position = 0; position < source.size(); ++position) {
        for (int bit = 0; bit < 8; ++bit) {
            Data changed(source);
            changed[position] ^= static_cast<std::byte>(1 << bit);
            try {
                penstock::decompress(codec, changed, 100'000);
            } catch (const penstock::DataError&) {
            }
        }
    }
}

void stops_at_the_limit() {
    const Data bomb = endless_frame(1000);  // 4 KB for 128 MiB
    expect(fails([&] { penstock::decompress(Codec::zstd, bomb, 1 << 20); }, "at most 1048576 bytes"),
           "a bomb is limited");
    const penstock::Bytes all = penstock::decompress(Codec::zstd, bomb, std::size_t{131'072} * 1000);
    expect(all.size() == std::size_t{131'072} * 1000, "output below the limit is returned");
}

void runs_on_many_threads(const std::vector<Codec>& codecs) {
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (std::size_t number = 0; number < wrong.size(); ++number) {
        threads.emplace_back([&, number] {
            const Data data = numbered_bytes(3000 + number);
            for (int round = 0; round < 20; ++round) {
                for (const Codec codec : codecs) wrong[number] += gives(codec, encoded(codec, data), data) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int count : wrong) expect(count == 0, "threads do not disturb each other");
}

bool is_there(Codec codec) {
    try {
        penstock::require(codec);
        return true;
    } catch (const penstock::LibraryMissing& error) {
        std::fprintf(stderr, "not tested: %s\n", error.what());
        return false;
    }
}

}  // namespace

int main() {
    std::vector<Codec> codecs;
    for (const std::string name : {"zlib", "gzip", "deflate", "zstd"}) {
        const Codec codec = penstock::codec_named(name);
        if (!is_there(codec)) continue;
        codecs.push_back(codec);
        gives_what_was_encoded(codec, name);
        refuses_what_is_cut_off_or_changed(codec, name);
    }
    if (is_there(Codec::gzip)) {
        expect(gives(Codec::gzip, joined(encoded(Codec::gzip, Data(5)), Data(9)), Data(5)), "gzip may end in zeros");
    }
    if (is_there(Codec::zstd)) stops_at_the_limit();
    runs_on_many_threads(codecs);
    return failures == 0 ? 0 : 1;
}

// The guarantees of BestFit and fill_rows, checked against a search over all open bins, and rows built by hand.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/packing.hpp"

namespace {

int failures = 0;

void expect(bool held, const char* promise) {
    if (!held) {
        std::fprintf(stderr, "FAILED: %s\n", promise);
        ++failures;
    }
}

using Integers = std::vector<std::int64_t>;

struct Bin {
    std::int64_t number;
    std::int64_t documents;
    Integers room;
};

// The results of a packer, and its open bins, oldest first.
struct Outcome {
    Integers bins;
    Integers closed;
    Integers closed_before;
    Integers numbers;
    Integers documents;
    Integers room;

    bool operator==(const Outcome&) const = default;
};

std::int64_t total(const Integers& values) { return std::accumulate(values.begin(), values.end(), std::int64_t{0}); }

// The rules as they are written, by looking at every open bin.
Outcome search(const Integers& lengths, const Integers& capacity, std::size_t bins, std::int64_t max_documents) {
    Outcome outcome;
    std::vector<Bin> open;  // oldest first
    const std::size_t width = capacity.size();
    std::int64_t next = 0;
    const auto done = [&](const Bin& bin) {
        return total(bin.room) == 0 || (max_documents > 0 && bin.documents == max_documents);
    };
    const auto by_room = [](const Bin& one, const Bin& other) { return total(one.room) < total(other.room); };
    for (std::size_t document = 0; document < lengths.size() / width; ++document) {
        const std::int64_t* length = lengths.data() + document * width;
        const auto put = [&](Bin& bin) {
            for (std::size_t feature = 0; feature < width; ++feature) {
                bin.room[feature] -= length[feature];
            }
            ++bin.documents;
            outcome.bins.push_back(bin.number);
        };
        const auto close = [&](std::int64_t number, std::size_t before) {
            outcome.closed.push_back(number);
            outcome.closed_before.push_back(static_cast<std::int64_t>(before));
        };
        auto best = open.end();
        for (auto bin = open.begin(); bin != open.end(); ++bin) {
            if (std::equal(length, length + width, bin->room.begin(), std::less_equal<>()) &&
                (best == open.end() || by_room(*bin, *best))) {
                best = bin;
            }
        }
        if (best != open.end()) {
            put(*best);
            if (done(*best)) {
                close(best->number, document + 1);
                open.erase(best);
            }
            continue;
        }
        Bin bin{next++, 0, capacity};
        put(bin);
        if (done(bin)) {
            close(bin.number, document + 1);
            continue;
        }
        if (open.size() == bins) {
            const auto fullest = std::min_element(open.begin(), open.end(), by_room);
            close(fullest->number, document);
            open.erase(fullest);
        }
        open.push_back(std::move(bin));
    }
    for (const Bin& bin : open) {
        outcome.numbers.push_back(bin.number);
        outcome.documents.push_back(bin.documents);
        outcome.room.insert(outcome.room.end(), bin.room.begin(), bin.room.end());
    }
    return outcome;
}

Outcome assign(penstock::BestFit& packer, const Integers& lengths) {
    const std::size_t count = lengths.size() / packer.features();
    Outcome outcome{Integers(count), Integers(count), Integers(count), {}, {}, {}};
    const std::size_t closed =
        packer.assign(lengths, {outcome.bins.data(), outcome.closed.data(), outcome.closed_before.data()});
    outcome.closed.resize(closed);
    outcome.closed_before.resize(closed);
    outcome.numbers.resize(packer.open_bins());
    outcome.documents.resize(packer.open_bins());
    outcome.room.resize(packer.open_bins() * packer.features());
    packer.open_bins(outcome.numbers.data(), outcome.documents.data(), outcome.room.data());
    return outcome;
}

// Documents of all lengths from 1 to the capacity, in an order without a pattern.
Integers mixed_lengths(std::size_t documents, const Integers& capacity) {
    Integers lengths;
    std::uint64_t state = 12345;
    for (std::size_t document = 0; document < documents; ++document) {
        for (const std::int64_t room : capacity) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            const auto drawn = static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(room));
            lengths.push_back(1 + (drawn * drawn) / room);
        }
    }
    return lengths;
}

void assigns_as_a_search_does() {
    for (const Integers& capacity : {Integers{9}, Integers{100}, Integers{2048}, Integers{30, 12}, Integers{5, 9, 7}}) {
        for (const std::size_t bins : {1U, 2U, 7U, 64U, 300U}) {
            for (const std::int64_t max_documents : {0, 1, 3}) {
                const Integers lengths = mixed_lengths(2000, capacity);
                penstock::BestFit packer(capacity, static_cast<std::int64_t>(bins), max_documents);
                expect(assign(packer, lengths) == search(lengths, capacity, bins, max_documents),
                       "documents go to the bins that a search finds");
            }
        }
    }
}

void continues_where_it_was() {
    const Integers capacity{50, 20};
    const Integers lengths = mixed_lengths(500, capacity);
    penstock::BestFit whole(capacity, 10, 4);
    const Outcome all = assign(whole, lengths);
    for (const std::ptrdiff_t cut : {0, 1, 100, 499, 500}) {
        penstock::BestFit first(capacity, 10, 4);
        const Outcome before = assign(first, {lengths.begin(), lengths.begin() + 2 * cut});
        penstock::BestFit second(capacity, 10, 4);
        for (std::size_t bin = 0; bin < before.documents.size(); ++bin) {
            second.open({before.room.data() + 2 * bin, 2}, before.documents[bin]);
        }
        const Outcome after = assign(second, {lengths.begin() + 2 * cut, lengths.end()});
        expect(after.room == all.room && after.documents == all.documents,
               "bins opened as they were continue in the same way");
        expect(before.closed.size() + after.closed.size() == all.closed.size(), "as many bins close in two parts");
    }
}

template <typename Error, typename Call>
bool refuses(Call call) {
    try {
        call();
    } catch (const Error&) {
        return true;
    }
    return false;
}

void refuses_what_cannot_be() {
    const auto make = [](const Integers& capacity, std::int64_t bins, std::int64_t max_documents) {
        return [=] { penstock::BestFit(capacity, bins, max_documents); };
    };
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    expect(refuses<std::invalid_argument>(make({}, 1, 0)), "there must be a feature");
    expect(refuses<std::invalid_argument>(make({0, 0}, 1, 0)), "a bin must have room");
    expect(refuses<std::invalid_argument>(make({5, -1}, 1, 0)), "no capacity is negative");
    expect(refuses<std::invalid_argument>(make({most, 1}, 1, 0)), "room is counted in 63 bits");
    expect(refuses<std::invalid_argument>(make({5}, 0, 0)), "there must be a bin");
    expect(refuses<std::invalid_argument>(make({5}, std::int64_t{1} << 31, 0)), "bins are counted in 31 bits");
    expect(refuses<std::invalid_argument>(make({5}, 1, -1)), "no number of documents is negative");

    penstock::BestFit packer(Integers{5, 3}, 1, 2);
    for (const Integers& lengths : {Integers{1, 1, 6, 1}, Integers{1, 1, 1, -1}, Integers{1, 1, 0, 0}}) {
        Integers out(6, 77);
        expect(refuses<std::out_of_range>([&] { packer.assign(lengths, {&out[0], &out[2], &out[4]}); }),
               "lengths that cannot be are refused");
        expect(out == Integers(6, 77) && packer.open_bins() == 0, "nothing is assigned then");
    }
    expect(refuses<std::invalid_argument>([&] { packer.assign(Integers{1, 1, 1}, {nullptr, nullptr, nullptr}); }),
           "every document has all features");
    for (const auto& [room, documents] : {std::pair<Integers, std::int64_t>{{0, 0}, 1},
                                          {{6, 0}, 1},
                                          {{1, -1}, 1},
                                          {{1, 1}, 2},
                                          {{1, 1}, -1},
                                          {{1}, 1}}) {
        expect(refuses<std::invalid_argument>([&] { packer.open(room, documents); }), "no closed bin is open");
    }
    packer.open(Integers{1, 0}, 1);
    expect(refuses<std::invalid_argument>([&] { packer.open(Integers{1, 1}, 1); }), "no more bins are open than may");
}

void fills_rows() {
    const std::array<std::uint16_t, 5> document{10, 11, 12, 13, 14};
    const auto* tokens = reinterpret_cast<const std::byte*>(document.data());
    const std::vector<penstock::RowPiece> pieces{{tokens, 2}, {nullptr, 0}, {tokens + 6, 1}, {tokens, 5}};
    const Integers bounds{0, 3, 3, 4};
    const std::uint16_t padding = 7;
    std::vector<std::uint16_t> out(15, 99);
    std::vector<std::int32_t> segment_ids(15, 99);
    std::vector<std::int32_t> positions(15, 99);
    const penstock::PackedRows rows{
        reinterpret_cast<std::byte*>(out.data()),    segment_ids.data(), positions.data(), 5, 2,
        reinterpret_cast<const std::byte*>(&padding)};
    penstock::fill_rows(pieces, bounds, rows);
    expect(out == std::vector<std::uint16_t>{10, 11, 13, 7, 7, 7, 7, 7, 7, 7, 10, 11, 12, 13, 14},
           "rows hold their pieces, and padding");
    expect(segment_ids == std::vector<std::int32_t>{1, 1, 3, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1},
           "pieces are numbered in their row, empty ones too");
    expect(positions == std::vector<std::int32_t>{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4},
           "positions begin at 0 in each piece");

    const std::vector<std::uint16_t> before = out;
    for (const Integers& wrong : {Integers{0, 4}, Integers{0, 3, 2, 4}, Integers{1, 4}, Integers{0, 3}, Integers{}}) {
        expect(refuses<std::invalid_argument>([&] { penstock::fill_rows(pieces, wrong, rows); }),
               "bounds that don't fit are refused");
    }
    const std::vector<penstock::RowPiece> negative{{tokens, 5}, {tokens, -1}, {tokens, 1}};
    expect(refuses<std::invalid_argument>([&] { penstock::fill_rows(negative, Integers{0, 3}, rows); }),
           "negative lengths are refused");
    expect(out == before, "nothing is written where something is wrong");
}

void pads_tokens_of_any_size() {
    for (const std::size_t token_bytes : {1U, 3U, 4U, 16U}) {
        for (const std::int64_t capacity : {0, 1, 2, 7, 100}) {
            std::vector<std::byte> padding(token_bytes);
            for (std::size_t i = 0; i < token_bytes; ++i) {
                padding[i] = static_cast<std::byte>(i + 1);
            }
            std::vector<std::byte> out(static_cast<std::size_t>(capacity) * token_bytes);
            penstock::fill_rows({}, Integers{0, 0},
                                {out.data(), nullptr, nullptr, capacity, token_bytes, padding.data()});
            bool equal = true;
            for (std::size_t i = 0; i < out.size(); ++i) {
                equal = equal && out[i] == padding[i % token_bytes];
            }
            expect(equal, "padding is a token of any size");
        }
    }
}

}  // namespace

int main() {
    assigns_as_a_search_does();
    continues_where_it_was();
    refuses_what_cannot_be();
    fills_rows();
    pads_tokens_of_any_size();
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// The guarantees of usual_tar_file() and SampleColumns, for headers and samples that are built here by hand.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/sample_columns.hpp"
#include "core/tar.hpp"

namespace {

using penstock::SampleColumns;
using penstock::TarFile;
using penstock::usual_tar_file;

int failures = 0;

void expect(bool held, const std::string& promise) {
    if (!held) {
        std::fprintf(stderr, "FAILED: %s\n", promise.c_str());
        ++failures;
    }
}

constexpr std::size_t kBlock = 512;

// A member with its fill.
std::string member(const std::string& name, const std::string& content, char kind = '0') {
    std::string header(kBlock, '\0');
    header.replace(0, name.size(), name);
    char digits[12];
    std::snprintf(digits, sizeof(digits), "%011zo", content.size());
    header.replace(124, 11, digits);
    header[156] = kind;
    return header + content + std::string((kBlock - content.size() % kBlock) % kBlock, '\0');
}

void test_tar_files() {
    const std::string first = member("a.b/7.Seg.PNG", std::string(600, 'x'));
    const std::string span = first + member("a.b/7.cls", "3");
    const std::optional<TarFile> file = usual_tar_file(span, 0);
    expect(file && file->key == "a.b/7" && file->field_name() == "seg.png", "a name is key and field, in lower case");
    expect(file && file->content == std::string(600, 'x') && file->next == first.size(), "a file has its content");
    const std::optional<TarFile> second = usual_tar_file(span, first.size());
    expect(second && second->field_name() == "cls" && second->next == span.size(), "the next file follows the fill");
    expect(!usual_tar_file(span, span.size()), "there is no file at the end");
    expect(!usual_tar_file(span, span.size() + 1), "there is no file after the end");
    for (std::size_t size = 0; size < first.size(); ++size) {
        expect(!usual_tar_file(std::string_view(first).substr(0, size), 0), "a file that is cut isn't one");
    }
    for (const char* name : {"", "README", ".hidden.txt", "a/.b", "a.b/", "__meta__/1.txt", "\xc3\xa9.txt"}) {
        expect(!usual_tar_file(member(name, "x"), 0), std::string("a name isn't of the usual form: ") + name);
    }
    expect(!usual_tar_file(member("1.txt", "x", '2'), 0), "a link isn't a file");
    expect(!usual_tar_file(member(std::string(98, 'n') + ".t", "x"), 0), "a name must end in the header");
}

void test_extended_headers() {
    const std::string file = member("1.txt", "abc");
    for (const char* entries : {"", "13 mtime=1.5\n", "13 mtime=1.5\n13 atime=2.5\n", "4 =\n"}) {
        const std::string span = member("pax", entries, 'x') + file;
        const std::optional<TarFile> found = usual_tar_file(span, 0);
        expect(found && found->content == "abc" && found->next == span.size(), "an entry has no effect");
        for (std::size_t size = 0; size < span.size(); ++size) {
            expect(!usual_tar_file(std::string_view(span).substr(0, size), 0), "a file that is cut isn't one");
        }
    }
    for (const char* entries :
         {"14 path=2.txt\n", "9 size=9\n", "22 GNU.sparse.major=1\n", "13 mtime=1.5", "12 mtime=1.5\n", "mtime=1.5\n",
          " mtime=1.5\n", "3 =", "2 \n", "9 mtime15\n", "1234567890 a=b\n", "0 a=b\n"}) {
        expect(!usual_tar_file(member("pax", entries, 'x') + file, 0), std::string("an entry is refused: ") + entries);
    }
}

std::string number(std::uint32_t value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
}

void test_sample_columns() {
    const SampleColumns columns({0, 3, 0});
    const std::string sample = number(2) + number(1) + "aabbbc";
    std::vector<std::string_view> found;
    const auto collect = [&](std::size_t column, std::string_view bytes) {
        expect(column == found.size(), "columns come in order");
        found.push_back(bytes);
        return found.size() < 3;
    };
    expect(columns.fit(sample), "columns fit their sample");
    expect(!columns.each(sample, collect), "the last visit has returned false");
    expect(found == std::vector<std::string_view>{"aa", "bbb", "c"}, "columns have their bytes");
    for (std::size_t size = 0; size < sample.size(); ++size) {
        expect(!columns.fit(std::string_view(sample).substr(0, size)), "columns don't fit a sample that is cut");
    }
    expect(!columns.fit(sample + "d"), "columns don't fit a sample with more");
    expect(!columns.fit(number(UINT32_MAX) + number(UINT32_MAX) + "aabbbc"), "the sum of sizes doesn't overflow");
    expect(SampleColumns({}).fit("") && !SampleColumns({}).fit("a"), "a sample may have no columns");
    try {
        SampleColumns({std::uint64_t{1} << 32});
        expect(false, "a size beyond all samples is refused");
    } catch (const std::invalid_argument&) {
    }
}

}  // namespace

int main() {
    test_tar_files();
    test_extended_headers();
    test_sample_columns();
    return failures == 0 ? 0 : 1;
}

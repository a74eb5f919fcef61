#include "core/decompress.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "core/codecs.hpp"

namespace penstock {

namespace {

using Source = std::span<const std::byte>;

constexpr std::array<std::string_view, 4> codec_names{"zlib", "gzip", "deflate", "zstd"};
constexpr std::size_t max_at_once = std::size_t{1} << 30;  // zlib counts in an unsigned int
constexpr std::size_t min_capacity = 1024;
constexpr std::size_t usual_expansion = 4;
constexpr std::size_t max_small = std::size_t{1} << 18;  // a context's own buffers are as large as its last output
constexpr std::size_t max_expansion = 1032;              // the largest factor of deflate

struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

// The output: memory of the caller that must be filled exactly, or memory that grows up to a limit.
class Output {
  public:
    explicit Output(std::span<std::byte> out)
        : data_(out.data()), capacity_(out.size()), limit_(out.size()), is_given_(true) {}
    Output(std::size_t limit, std::size_t guess) : limit_(limit) { expect(guess); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    std::size_t size() const noexcept { return size_; }
    std::size_t limit() const noexcept { return limit_; }
    bool is_given() const noexcept { return is_given_; }

    // The room for the next bytes, never empty: after the limit there is one more byte, to distinguish an input that
    // has ended from one that has more.
    std::span<std::byte> room() {
        if (size_ == limit_) return {&beyond_, 1};
        if (size_ == capacity_) expect(min_capacity);
        return {data_ + size_, capacity_ - size_};
    }

    // Whether the bytes written are within the limit.
    [[nodiscard]] bool add(std::size_t count) noexcept {
        if (count > limit_ - size_) return false;
        size_ += count;
        return true;
    }

    // Allocates memory for so many more bytes, up to the limit; at first exactly that.
    void expect(std::size_t more) {
        if (is_given_ || more <= capacity_ - size_) return;
        const std::size_t doubled = capacity_ <= limit_ / 2 ? 2 * capacity_ : limit_;
        resize(std::max(size_ + std::min(more, limit_ - size_), doubled));
    }

    Bytes take() {
        if (size_ == 0) return {};
        if (capacity_ - size_ > size_ / 8) resize(size_);
        std::shared_ptr<const void> owner = std::move(own_);
        return Bytes(data_, size_, std::move(owner));
    }

  private:
    void resize(std::size_t capacity) {
        auto* const moved = static_cast<std::byte*>(std::realloc(own_.get(), std::max<std::size_t>(capacity, 1)));
        if (moved == nullptr) throw std::bad_alloc();
        static_cast<void>(own_.release());  // realloc has freed it
        own_.reset(moved);
        data_ = moved;
        capacity_ = capacity;
    }

    std::unique_ptr<std::byte, Free> own_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
    std::size_t limit_;
    bool is_given_ = false;
    std::byte beyond_{};
};

std::string numbered(std::uint64_t count) { return std::to_string(count) + (count == 1 ? " byte" : " bytes"); }

// The codec that the first bytes suggest, or empty.
std::string_view looks_like(Source source) {
    const auto byte = [&](std::size_t position) {
        return position < source.size() ? static_cast<unsigned>(source[position]) : 0U;
    };
    if (byte(0) == 0x1F && byte(1) == 0x8B) return "gzip";
    if (byte(0) == 0x28 && byte(1) == 0xB5 && byte(2) == 0x2F && byte(3) == 0xFD) return "zstd";
    if ((byte(0) & 0x8F) == 0x08 && (byte(0) * 256 + byte(1)) % 31 == 0) return "zlib";
    return {};
}

// An input that is being decompressed; it builds the error texts.
struct Task {
    Codec codec;
    Source source;
    Output& output;

    std::string_view name() const { return codec_names[static_cast<std::size_t>(codec)]; }

    [[noreturn]] void fail(std::string rule, std::size_t position, const std::string& remedy) const {
        throw DataError(std::string(name()) + ": " + std::move(rule) + " at byte " + std::to_string(position) + " of " +
                        std::to_string(source.size()) + ", after " + numbered(output.size()) + " of output. " + remedy);
    }
    [[noreturn]] void fail_truncated() const {
        fail("the input ends before the end of its stream,", source.size(), "Pass the whole input: its end is missing");
    }
    [[noreturn]] void fail_corrupt(const char* why, std::size_t position) const {
        const std::string_view other = looks_like(source);
        fail("the input is corrupt (" + std::string(why == nullptr ? "invalid data" : why) + ")", position,
             other.empty() || other == name() ? "Read it or create it again"
                                              : "It starts like " + std::string(other) + ": pass that as the codec");
    }
    [[noreturn]] void fail_too_long(std::size_t position, const std::string& more) const {
        fail("the output must have " + std::string(output.is_given() ? "exactly " : "at most ") +
                 numbered(output.limit()) + ", and has " + more + ",",
             position,
             output.is_given() ? "Pass its true size, or none" : "Pass a larger max_size, if you trust the input");
    }
};

class Inflater {
  public:
    explicit Inflater(Codec codec) : library_(zlib()) {
        const int window_bits = codec == Codec::gzip ? 31 : codec == Codec::deflate ? -15 : 15;
        const int status = library_.start(&stream_, window_bits, "1", static_cast<int>(sizeof stream_));
        if (status == Zlib::no_memory) throw std::bad_alloc();
        if (status != Zlib::done) throw LibraryMissing("the system's zlib must have version 1; install that version");
    }
    ~Inflater() { library_.end(&stream_); }
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;

    // Runs until input or room is used up, or a stream has ended.
    int inflate(Source& input, std::span<std::byte>& room) {
        const std::size_t given = std::min(input.size(), max_at_once), free = std::min(room.size(), max_at_once);
        stream_.next_in = input.data();
        stream_.available_in = static_cast<unsigned int>(given);
        stream_.next_out = room.data();
        stream_.available_out = static_cast<unsigned int>(free);
        const int status = library_.inflate(&stream_, 0);
        input = input.subspan(given - stream_.available_in);
        room = room.subspan(free - stream_.available_out);
        return status;
    }
    void restart() { library_.restart(&stream_); }
    const char* message() const { return stream_.message; }

  private:
    const Zlib& library_;
    Zlib::Stream stream_{};
};

void inflate_all(const Task& task) {
    Inflater inflater(task.codec);
    Source input = task.source;
    for (;;) {
        std::span<std::byte> room = task.output.room();
        const std::size_t free = room.size();
        const int status = inflater.inflate(input, room);
        const std::size_t position = task.source.size() - input.size();
        if (!task.output.add(free - room.size())) task.fail_too_long(position, "more");
        switch (status) {
            case Zlib::stream_end:
                while (task.codec == Codec::gzip && !input.empty() && input[0] == std::byte{0})
                    input = input.subspan(1);
                if (input.empty()) return;
                if (task.codec != Codec::gzip) {
                    task.fail(numbered(input.size()) + " follow the end of the stream", position,
                              "Pass only the stream: source[:" + std::to_string(position) + "]");
                }
                inflater.restart();
                break;
            case Zlib::done:
            case Zlib::no_progress:
                if (input.empty() && !room.empty()) task.fail_truncated();
                break;
            case Zlib::needs_dictionary:
                task.fail_corrupt("it requires a preset dictionary", position);
            case Zlib::no_memory:
                throw std::bad_alloc();
            default:
                task.fail_corrupt(inflater.message(), position);
        }
    }
}

struct DropContext {
    void operator()(Zstd::Context* context) const noexcept { zstd().drop_context(context); }
};
using OwnedContext = std::unique_ptr<Zstd::Context, DropContext>;

// The context of the thread's last small input: to make one takes longer than to decompress a record of a kilobyte.
thread_local OwnedContext kept_context;

void decompress_frames(const Task& task) {
    const Zstd& library = zstd();
    OwnedContext context = std::move(kept_context);
    if (context == nullptr) context.reset(library.make_context());
    if (context == nullptr) throw std::bad_alloc();
    Zstd::Input input{task.source.data(), task.source.size(), 0};
    std::size_t start = 0;  // of this frame
    for (std::size_t left = 0; left != 0 || input.position < input.size;) {
        if (left == 0) {
            start = input.position;
            const std::size_t rest = input.size - start;
            const auto size = library.content_size(task.source.data() + start, rest);
            const bool is_known = size < Zstd::no_frame;
            if (is_known && size > task.output.limit() - task.output.size()) {
                task.fail_too_long(start, "a frame of " + numbered(size));
            }
            task.output.expect(is_known ? static_cast<std::size_t>(size) : usual_expansion * rest);
        }
        const std::span<std::byte> room = task.output.room();
        Zstd::Output output{room.data(), room.size(), 0};
        left = library.decompress(context.get(), &output, &input);
        if (library.is_error(left) != 0) {
            task.fail_corrupt(library.error_name(left), std::max(start, input.position));
        }
        if (!task.output.add(output.position)) task.fail_too_long(input.position, "more");
        if (left != 0 && input.position == input.size && output.position < output.size) task.fail_truncated();
    }
    // Not after a failure, which leaves it in the middle of a frame.
    if (task.output.size() <= max_small) kept_context = std::move(context);
}

void decompress_all(const Task& task) {
    if (task.source.empty()) task.fail_truncated();
    if (task.codec == Codec::zstd) {
        decompress_frames(task);
    } else {
        inflate_all(task);
    }
}

// The memory to allocate at first: the size in the last gzip member, if that is plausible, or a multiple of the input.
std::size_t guessed_size(Codec codec, Source source) {
    if (codec == Codec::zstd) return 0;  // its frames hold their sizes
    std::size_t size_mod_2_32 = 0;
    if (codec == Codec::gzip && source.size() >= 4) {
        for (std::size_t place = 1; place <= 4; ++place) {
            size_mod_2_32 = size_mod_2_32 << 8 | static_cast<std::size_t>(source[source.size() - place]);
        }
    }
    const bool is_likely = size_mod_2_32 >= source.size() / 2 && size_mod_2_32 / max_expansion <= source.size();
    return is_likely && size_mod_2_32 > 0 ? size_mod_2_32 : usual_expansion * source.size();
}

}  // namespace

Codec codec_named(std::string_view name) {
    const auto found = std::find(codec_names.begin(), codec_names.end(), name);
    if (found == codec_names.end()) throw std::invalid_argument("there is no such codec");
    return static_cast<Codec>(found - codec_names.begin());
}

void require(Codec codec) {
    if (codec == Codec::zstd) {
        zstd();
    } else {
        zlib();
    }
}

void decompress_into(Codec codec, Source source, std::span<std::byte> out) {
    Output output(out);
    const Task task{codec, source, output};
    decompress_all(task);
    if (output.size() != out.size()) {
        task.fail("the output must have exactly " + numbered(out.size()) + ", and its stream ends", source.size(),
                  "Pass its true size, or none");
    }
}

Bytes decompress(Codec codec, Source source, std::uint64_t max_size) {
    const auto limit = static_cast<std::size_t>(max_size);
    Output output(limit, guessed_size(codec, source));
    decompress_all({codec, source, output});
    return output.take();
}

}  // namespace penstock

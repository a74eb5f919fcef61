#include "core/jpeg.hpp"

#ifdef PENSTOCK_HAS_JPEG
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include <jpeglib.h>

#include <jerror.h>
#endif

namespace penstock {

#ifdef PENSTOCK_HAS_JPEG

namespace {

// Columns decoded beyond the box: a pixel's colour is smoothed with those beside it.
constexpr std::size_t margin = 4;
// As Pillow's limit for a "decompression bomb". A progressive file needs memory for all of its pixels.
constexpr std::size_t most_pixels = 178'956'970;
constexpr int exif_marker = JPEG_APP0 + 1;  // XMP has the same marker

// libjpeg's messages by their numbers. Its own table and error manager are not used: they are in a unit that prints to
// `stderr`, which some static libraries can't do in a module.
#define JCOPYRIGHT_SHORT ""  // these two are no errors, and their texts are in a private header
#define JVERSION ""
constexpr const char* messages[] = {
#define JMESSAGE(code, text) text,
#include <jerror.h>
};

// libjpeg reports an error by a function that must not return, so it jumps. No frame between the jump and its target
// has a destructor: such frames are libjpeg's, and functions here that only have numbers and pointers.
struct Errors {
    jpeg_error_mgr manager;  // first: libjpeg passes its address
    std::jmp_buf jump;
    char text[JMSG_LENGTH_MAX];
};

template <class File>
Errors& errors_of(File file) {
    return *reinterpret_cast<Errors*>(file->err);
}

[[noreturn]] void jump_with_text(j_common_ptr file) {
    Errors& errors = errors_of(file);
    const auto code = static_cast<std::size_t>(errors.manager.msg_code);
    const char* format = code < std::size(messages) ? messages[code] : "unknown error";
    if (std::strstr(format, "%s") != nullptr) {
        std::snprintf(errors.text, sizeof(errors.text), format, errors.manager.msg_parm.s);
    } else {
        const int* number = errors.manager.msg_parm.i;
        std::snprintf(errors.text, sizeof(errors.text), format, number[0], number[1], number[2], number[3], number[4],
                      number[5], number[6], number[7]);
    }
    std::longjmp(errors.jump, 1);
}

void ignore_message(j_common_ptr, int) {}
void print_nothing(j_common_ptr) {}
void write_nothing(j_common_ptr, char* text) { text[0] = '\0'; }

[[noreturn]] void end_too_early(j_decompress_ptr file) {
    Errors& errors = errors_of(file);
    errors.manager.msg_code = JERR_INPUT_EOF;
    std::snprintf(errors.text, sizeof(errors.text), "the file is truncated");
    std::longjmp(errors.jump, 1);
}

boolean refuse_to_fill(j_decompress_ptr file) { end_too_early(file); }

void skip_bytes(j_decompress_ptr file, long count) {
    if (count <= 0) return;
    if (static_cast<std::size_t>(count) > file->src->bytes_in_buffer) end_too_early(file);
    file->src->next_input_byte += count;
    file->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

void do_nothing(j_decompress_ptr) {}

// What Pillow makes of four inks: it inverts those that the file holds.
void make_colours(JSAMPLE* pixels, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i, pixels += 4) {
        const int black = pixels[3];
        for (int channel = 0; channel < 3; ++channel) {
            const int product = (255 - pixels[channel]) * black + 128;
            pixels[channel] = static_cast<JSAMPLE>(std::max(black - (((product >> 8) + product) >> 8), 0));
        }
    }
}

// The integers of EXIF's TIFF structure, which may be in either order of bytes.
class Tiff {
  public:
    Tiff(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

    std::size_t number(std::size_t at, std::size_t width) const {
        if (at > size_ || size_ - at < width) return 0;
        const bool is_little = bytes_[0] == 'I';
        std::size_t value = 0;
        for (std::size_t i = 0; i < width; ++i) value = value << 8 | bytes_[at + (is_little ? width - 1 - i : i)];
        return value;
    }

  private:
    const std::uint8_t* bytes_;
    std::size_t size_;
};

// Returns the bytes of an integer of a TIFF type; 0 for a type whose values are no integers.
std::size_t integer_bytes(std::size_t type) {
    switch (type) {
        case 6:  // SBYTE; a BYTE holds bytes, not a number
            return 1;
        case 3:  // SHORT, which EXIF requires
        case 8:  // SSHORT
            return 2;
        case 4:  // LONG
        case 9:  // SLONG
            return 4;
        default:
            return 0;
    }
}

bool begins_with(std::span<const std::uint8_t> bytes, std::string_view header) {
    return bytes.size() >= header.size() && std::memcmp(bytes.data(), header.data(), header.size()) == 0;
}

// Returns the orientation in a marker's EXIF; nothing if that is damaged or has no such tag, and 1, which is upright,
// if the tag's value is no integer.
std::optional<std::size_t> orientation_in_exif(std::span<const std::uint8_t> marker) {
    using namespace std::string_view_literals;
    constexpr auto header = "Exif\0\0"sv;
    constexpr std::size_t entry_bytes = 12, inline_bytes = 4;
    constexpr std::size_t tag = 0x0112;
    if (marker.size() < header.size() + 8 || !begins_with(marker, header)) return std::nullopt;
    const auto content = marker.subspan(header.size());
    // Like Pillow, it takes 42 in the other order of bytes, too.
    const bool is_tiff = begins_with(content, "II*\0"sv) || begins_with(content, "MM\0*"sv) ||
                         begins_with(content, "II\0*"sv) || begins_with(content, "MM*\0"sv);
    if (!is_tiff) return std::nullopt;  // damaged
    const Tiff tiff(content.data(), content.size());
    const std::size_t directory = tiff.number(4, 4);
    const std::size_t entries = tiff.number(directory, 2);
    for (std::size_t entry = 0; entry < entries; ++entry) {
        const std::size_t at = directory + 2 + entry * entry_bytes;
        if (tiff.number(at, 2) != tag) continue;
        const std::size_t width = integer_bytes(tiff.number(at + 2, 2)), count = tiff.number(at + 4, 4);
        if (width == 0 || count == 0) return 1;
        return tiff.number(width * count <= inline_bytes ? at + 8 : tiff.number(at + 8, 4), width);
    }
    return std::nullopt;
}

// Returns the orientation in a marker's XMP, which Pillow finds in the same way: its text isn't parsed.
std::optional<std::size_t> orientation_in_xmp(std::span<const std::uint8_t> marker) {
    using namespace std::string_view_literals;
    constexpr auto header = "http://ns.adobe.com/xap/1.0/\0"sv, name = "tiff:Orientation"sv;
    if (!begins_with(marker, header)) return std::nullopt;
    std::string_view text(reinterpret_cast<const char*>(marker.data()), marker.size());
    for (std::size_t at = text.find(name); at != text.npos; at = text.find(name)) {
        text.remove_prefix(at + name.size());
        for (const std::string_view before : {"=\""sv, ">"sv}) {
            if (!text.starts_with(before) || text.size() == before.size()) continue;
            const char digit = text[before.size()];
            if (digit >= '0' && digit <= '9') return static_cast<std::size_t>(digit - '0');
        }
    }
    return std::nullopt;
}

// Whether a marker has an image's size: those from SOF0 to SOF15, whose numbers three others share.
bool is_frame(int marker) {
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

bool is_four_inks(J_COLOR_SPACE space) { return space == JCS_CMYK || space == JCS_YCCK; }

}  // namespace

struct JpegFile::Reader {
    Errors errors{};
    jpeg_source_mgr source{};
    jpeg_decompress_struct file{};
    std::size_t left = 0;  // the first decoded column, once decoding has begun

    void start(std::span<const std::uint8_t> bytes) {
        file.err = &errors.manager;
        errors.manager.error_exit = jump_with_text;
        errors.manager.emit_message = ignore_message;
        errors.manager.output_message = print_nothing;
        errors.manager.format_message = write_nothing;
        errors.manager.reset_error_mgr = print_nothing;
        source.next_input_byte = bytes.data();
        source.bytes_in_buffer = bytes.size();
        source.init_source = do_nothing;
        source.fill_input_buffer = refuse_to_fill;
        source.skip_input_data = skip_bytes;
        source.resync_to_restart = jpeg_resync_to_restart;
        source.term_source = do_nothing;
    }

    // Each returns false after an error.
    bool read_header(bool reads_orientation) {
        if (setjmp(errors.jump) != 0) return false;
        jpeg_create_decompress(&file);
        file.src = &source;
        if (reads_orientation) jpeg_save_markers(&file, exif_marker, 0xffff);
        jpeg_read_header(&file, TRUE);
        if (std::size_t{file.image_width} * file.image_height > most_pixels) ERREXIT1(&file, JERR_IMAGE_TOO_BIG, 65500);
        return true;
    }

    bool read_lines(const PixelBox& box, std::uint8_t* memory, std::size_t line_bytes) {
        if (setjmp(errors.jump) != 0) return false;
        file.out_color_space = is_four_inks(file.jpeg_color_space) ? JCS_CMYK : JCS_EXT_RGBX;
        file.dct_method = JDCT_ISLOW;
        file.do_fancy_upsampling = TRUE;
        jpeg_start_decompress(&file);
        if (smooths_blocks()) {
            copy_box(box, memory, line_bytes);
        } else {
            read_box(box, memory, line_bytes);
        }
        if (file.output_scanline < file.output_height && !ends_next()) {
            // Lines are not looked at if they are skipped up to the last one, so that one is decoded.
            jpeg_skip_scanlines(&file, file.output_height - 1 - file.output_scanline);
            read_line(memory + box.height() * line_bytes);
        }
        return true;
    }

    // Reads the markers behind the last line, if it was decoded: one that ended the scan early is among them. A file
    // that lacks its end there is good, as for Pillow, unless a second image begins.
    bool read_end() {
        if (setjmp(errors.jump) != 0) return errors.manager.msg_code == JERR_INPUT_EOF && !is_frame(file.unread_marker);
        if (file.output_scanline == file.output_height) jpeg_finish_decompress(&file);
        return true;
    }

  private:
    void read_line(JSAMPROW line) {
        jpeg_read_scanlines(&file, &line, 1);
        if (is_four_inks(file.jpeg_color_space)) make_colours(line, file.output_width);
    }

    void read_box(const PixelBox& box, std::uint8_t* memory, std::size_t line_bytes) {
        const std::size_t right = std::min(box.right + margin, std::size_t{file.output_width});
        auto first = static_cast<JDIMENSION>(box.left > margin ? box.left - margin : 0);
        auto width = static_cast<JDIMENSION>(right - first);
        if (width < file.output_width) jpeg_crop_scanline(&file, &first, &width);
        left = first;
        if (box.top > 0) jpeg_skip_scanlines(&file, static_cast<JDIMENSION>(box.top));
        while (file.output_scanline < box.bottom) read_line(memory + (file.output_scanline - box.top) * line_bytes);
    }

    // Decodes complete lines from the first one on, and keeps the box.
    void copy_box(const PixelBox& box, std::uint8_t* memory, std::size_t line_bytes) {
        const auto pool = reinterpret_cast<j_common_ptr>(&file);
        const JSAMPROW line = file.mem->alloc_sarray(pool, JPOOL_IMAGE, file.output_width * 4, 1)[0];
        left = box.left;
        while (file.output_scanline < box.bottom) {
            const std::size_t y = file.output_scanline;
            read_line(line);
            if (y < box.top) continue;
            std::memcpy(memory + (y - box.top) * line_bytes, line + box.left * 4, box.width() * 4);
        }
    }

    // Whether libjpeg estimates what a progressive file lacks, from the blocks around each: those beside a box, too.
    bool smooths_blocks() const {
        if (!file.progressive_mode) return false;
        for (int component = 0; component < file.num_components; ++component) {
            const int* inexact_bits = file.coef_bits[component];
            if (std::any_of(inexact_bits + 1, inexact_bits + DCTSIZE2, [](int bits) { return bits != 0; })) return true;
        }
        return false;
    }

    // Whether the next marker is the file's end, apart from those that restart the decoding of a scan. Then nothing in
    // the lines left can be an error.
    bool ends_next() {
        if (jpeg_input_complete(&file)) return true;
        int marker = file.unread_marker;
        const JOCTET* at = source.next_input_byte;
        const JOCTET* const end = at + source.bytes_in_buffer;
        while (marker == 0 || (marker >= JPEG_RST0 && marker <= JPEG_RST0 + 7)) {
            at = static_cast<const JOCTET*>(std::memchr(at, 0xff, static_cast<std::size_t>(end - at)));
            if (at == nullptr) return false;
            at = std::find_if(at, end, [](JOCTET byte) { return byte != 0xff; });
            if (at == end) return false;
            marker = *at;
        }
        return marker == JPEG_EOI;
    }
};

bool has_jpeg() noexcept { return true; }

JpegFile::JpegFile(std::span<const std::uint8_t> bytes, bool reads_orientation) : reader_(std::make_unique<Reader>()) {
    using namespace std::string_view_literals;
    if (!begins_with(bytes, "\xff\xd8\xff"sv)) {
        status_ = JpegStatus::broken;
        reason_ = "the file begins as no JPEG does";
        return;
    }
    reader_->start(bytes);
    if (!reader_->read_header(reads_orientation)) {
        fail();
        return;
    }
    status_ = JpegStatus::good;
    width_ = reader_->file.image_width;
    height_ = reader_->file.image_height;
    std::optional<std::size_t> in_exif, in_xmp;
    for (const jpeg_marker_struct* each = reader_->file.marker_list; each != nullptr; each = each->next) {
        if (each->marker != exif_marker) continue;
        const std::span<const std::uint8_t> marker(each->data, each->data_length);
        if (!in_exif) in_exif = orientation_in_exif(marker);
        if (!in_xmp) in_xmp = orientation_in_xmp(marker);
    }
    const std::size_t found = in_exif.value_or(in_xmp.value_or(1));
    orientation_ = found >= 1 && found <= 8 ? static_cast<int>(found) : 1;
}

JpegFile::~JpegFile() { jpeg_destroy_decompress(&reader_->file); }

void JpegFile::fail() {
    const int code = reader_->errors.manager.msg_code;
    const bool is_unsupported = code == JERR_SOF_UNSUPPORTED || code == JERR_ARITH_NOTIMPL ||
                                code == JERR_BAD_PRECISION || code == JERR_CONVERSION_NOTIMPL ||
                                code == JERR_CCIR601_NOTIMPL || code == JERR_FRACT_SAMPLE_NOTIMPL;
    status_ = is_unsupported ? JpegStatus::unsupported : JpegStatus::broken;
    reason_ = reader_->errors.text;
}

// Cropping begins at the first column of a block, which is at most this wide.
std::size_t JpegFile::line_bytes(const PixelBox& box) const noexcept {
    constexpr std::size_t widest_block = 32;
    return std::min(width_, box.width() + 2 * margin + widest_block) * 4;
}

std::size_t JpegFile::bytes_of(const PixelBox& box) const noexcept {
    return line_bytes(box) * (box.height() + 1) + resize_slack;  // with one for a line below the box
}

FourBytePixels JpegFile::decode(const PixelBox& box, std::uint8_t* memory) {
    if (!reader_->read_lines(box, memory, line_bytes(box)) || !reader_->read_end()) {
        fail();
        return {};
    }
    return {memory + (box.left - reader_->left) * 4, line_bytes(box), box.width(), box.height()};
}

#else

struct JpegFile::Reader {};

bool has_jpeg() noexcept { return false; }

JpegFile::JpegFile(std::span<const std::uint8_t>, bool) {}
JpegFile::~JpegFile() = default;
void JpegFile::fail() {}
std::size_t JpegFile::line_bytes(const PixelBox&) const noexcept { return 0; }
std::size_t JpegFile::bytes_of(const PixelBox&) const noexcept { return 0; }
FourBytePixels JpegFile::decode(const PixelBox&, std::uint8_t*) { return {}; }

#endif

}  // namespace penstock

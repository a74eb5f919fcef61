// Decoding of a box of a JPEG's pixels, by libjpeg-turbo. Columns outside of the box are decoded only as far as blocks
// and the smoothing of colours need them, lines above it are only parsed, and lines below it are only searched for a
// marker that isn't the file's end. All are decoded where a progressive file lacks its last scans.
//
// The pixels are those of the complete image, and those that Pillow gets: libjpeg's slow integer transform, colours
// smoothed between pixels. Where libjpeg only warns, as of a block that doesn't fit, the pixels are what it makes of
// it; a file that ends too early is an error, and so is one whose markers are in no valid order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/resize.hpp"

namespace penstock {

enum class JpegStatus {
    good,
    broken,       // the bytes are no JPEG, or end too early
    unsupported,  // libjpeg doesn't read this kind of JPEG
    missing,      // the build had no libjpeg-turbo
};

// The pixels [left, right) of lines [top, bottom).
struct PixelBox {
    std::size_t left = 0;
    std::size_t top = 0;
    std::size_t right = 0;
    std::size_t bottom = 0;

    std::size_t width() const noexcept { return right - left; }
    std::size_t height() const noexcept { return bottom - top; }
};

// Whether this build decodes JPEGs.
bool has_jpeg() noexcept;

// One file, whose bytes must stay. For one thread at a time.
class JpegFile {
  public:
    // Reads the header; `status` has the outcome.
    explicit JpegFile(std::span<const std::uint8_t> bytes, bool reads_orientation = false);
    ~JpegFile();
    JpegFile(const JpegFile&) = delete;
    JpegFile& operator=(const JpegFile&) = delete;

    JpegStatus status() const noexcept { return status_; }
    // libjpeg's reason, in English, if the status isn't good.
    const std::string& reason() const noexcept { return reason_; }
    std::size_t width() const noexcept { return width_; }
    std::size_t height() const noexcept { return height_; }
    // EXIF's number from 1 to 8 for the turn and mirroring that shows the image upright, or XMP's where EXIF has none.
    int orientation() const noexcept { return orientation_; }

    // The number of bytes that `decode` needs.
    std::size_t bytes_of(const PixelBox& box) const noexcept;
    // Decodes a box inside the image into memory of `bytes_of(box)` bytes, once; after a failure the status says so.
    FourBytePixels decode(const PixelBox& box, std::uint8_t* memory);

  private:
    struct Reader;
    void fail();
    std::size_t line_bytes(const PixelBox& box) const noexcept;

    std::unique_ptr<Reader> reader_;
    JpegStatus status_ = JpegStatus::missing;
    std::string reason_;
    std::size_t width_ = 0;
    std::size_t height_ = 0;
    int orientation_ = 1;
};

}  // namespace penstock

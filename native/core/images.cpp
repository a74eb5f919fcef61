// This unit is compiled with -ffp-contract=off: a fused multiply-add would round once instead of twice.
#include "core/images.hpp"

#include <algorithm>

#include "core/parallel.hpp"

#ifdef PENSTOCK_HAS_AVX2_BUILD
#include <immintrin.h>
#endif

namespace penstock {
namespace {

// The parameters that all lines share.
struct Job {
    std::size_t channels;
    std::size_t plane;  // floats from one channel's plane to the next
    const float* scale;
    const float* shift;
};

// Pixels of one line, and the float of their first channel.
struct Line {
    const std::uint8_t* bytes;
    std::size_t width;
    float* out;
};

// Converts the pixels from `from` on, with any strides.
inline void convert_pixels(const Job& job, const Line& line, std::ptrdiff_t pixel_stride, std::ptrdiff_t channel_stride,
                           std::size_t from = 0) {
    for (std::size_t channel = 0; channel < job.channels; ++channel) {
        const float scale = job.scale[channel];
        const float shift = job.shift[channel];
        const std::uint8_t* bytes = line.bytes + static_cast<std::ptrdiff_t>(channel) * channel_stride;
        float* out = line.out + channel * job.plane;
        for (std::size_t x = from; x < line.width; ++x) {
            const float product = static_cast<float>(bytes[static_cast<std::ptrdiff_t>(x) * pixel_stride]) * scale;
            out[x] = product + shift;
        }
    }
}

#ifdef PENSTOCK_HAS_AVX2_BUILD

constexpr std::size_t group = 8;         // pixels per iteration, four from each half of a vector
constexpr std::size_t half_bytes = 16;   // bytes loaded for each half, of which `4 * channels` are used
constexpr std::size_t max_channels = 4;  // four pixels must fit into a half

// Moves one channel of each half's four pixels to the lowest bytes of four 32-bit integers, and zeros above them.
__attribute__((target("avx2"))) inline __m256i pick_channel(std::size_t channel, std::size_t channels) {
    alignas(32) std::uint8_t order[32];
    for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t pixel = i % 16 / 4;
        order[i] = i % 4 == 0 ? static_cast<std::uint8_t>(pixel * channels + channel) : 0x80;
    }
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(order));
}

// Converts contiguous pixels. Bytes may be read up to `readable_end`, beyond the end of the line.
template <std::size_t channels>
__attribute__((target("avx2"))) void convert_line_avx2(const Job& job, const Line& line,
                                                       const std::uint8_t* readable_end) {
    if (line.width < group) {
        convert_pixels(job, line, channels, 1);
        return;
    }
    __m256i pick[channels];
    __m256 scale[channels];
    __m256 shift[channels];
    for (std::size_t channel = 0; channel < channels; ++channel) {
        pick[channel] = pick_channel(channel, channels);
        scale[channel] = _mm256_set1_ps(job.scale[channel]);
        shift[channel] = _mm256_set1_ps(job.shift[channel]);
    }
    const auto convert_group = [&](std::size_t x) __attribute__((target("avx2"))) {
        const std::uint8_t* bytes = line.bytes + x * channels;
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 4 * channels));
        const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        for (std::size_t channel = 0; channel < channels; ++channel) {
            const __m256 values = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(pixels, pick[channel]));
            const __m256 product = _mm256_mul_ps(values, scale[channel]);
            _mm256_storeu_ps(line.out + channel * job.plane + x, _mm256_add_ps(product, shift[channel]));
        }
    };
    // A group reads up to `4 * channels + half_bytes` bytes, which is more than those of its pixels.
    const auto readable = static_cast<std::size_t>(readable_end - line.bytes);
    const std::size_t needed = 4 * channels + half_bytes;
    const std::size_t groups_end = readable < needed ? 0 : (readable - needed) / channels + 1;
    std::size_t x = 0;
    for (; x + group <= line.width && x < groups_end; x += group) {
        convert_group(x);
    }
    if (x < line.width && line.width - group < groups_end) {
        convert_group(line.width - group);  // the last pixels; some of them for the second time
        return;
    }
    convert_pixels(job, line, channels, 1, x);
}

#endif

void convert_close_line(const Job& job, const Line& line, const std::uint8_t* readable_end, Instructions instructions) {
#ifdef PENSTOCK_HAS_AVX2_BUILD
    if (instructions == Instructions::avx2 && job.channels <= max_channels) {
        switch (job.channels) {
            case 1:
                return convert_line_avx2<1>(job, line, readable_end);
            case 2:
                return convert_line_avx2<2>(job, line, readable_end);
            case 3:
                return convert_line_avx2<3>(job, line, readable_end);
            default:
                return convert_line_avx2<4>(job, line, readable_end);
        }
    }
#endif
    (void)instructions;
    (void)readable_end;
    convert_pixels(job, line, static_cast<std::ptrdiff_t>(job.channels), 1);
}

// Converts lines [begin, end) of one image, whose planes begin at `out`.
void convert_lines(const Job& job, const ImageShape& shape, const Image& image, std::size_t begin, std::size_t end,
                   float* out, Instructions instructions) {
    const auto channels = static_cast<std::ptrdiff_t>(shape.channels);
    const auto line_bytes = static_cast<std::ptrdiff_t>(shape.width) * channels;
    const bool are_close = (channels == 1 || image.channel_stride == 1) && image.pixel_stride == channels;
    const std::ptrdiff_t highest = image.line_stride < 0 ? 0 : static_cast<std::ptrdiff_t>(shape.height - 1);
    const std::uint8_t* readable_end = image.first + highest * image.line_stride + line_bytes;
    // Lines without gaps are converted as one long line.
    const std::size_t lines = are_close && image.line_stride == line_bytes ? end - begin : 1;
    for (std::size_t y = begin; y < end; y += lines) {
        const std::uint8_t* bytes = image.first + static_cast<std::ptrdiff_t>(y) * image.line_stride;
        const Line line{bytes, lines * shape.width, out + y * shape.width};
        if (are_close) {
            convert_close_line(job, line, readable_end, instructions);
        } else {
            convert_pixels(job, line, image.pixel_stride, image.channel_stride);
        }
    }
}

}  // namespace

void normalize_images(std::span<const Image> images, const ImageShape& shape, std::span<const float> scale,
                      std::span<const float> shift, float* out, std::size_t num_threads, Instructions instructions) {
    if (shape.pixels() == 0 || shape.channels == 0) {
        return;
    }
    const Job job{shape.channels, shape.pixels(), scale.data(), shift.data()};
    const auto convert = [&](std::size_t begin, std::size_t end) {
        while (begin < end) {
            const std::size_t image = begin / shape.height;
            const std::size_t first = begin % shape.height;
            const std::size_t last = std::min(shape.height, first + (end - begin));
            convert_lines(job, shape, images[image], first, last, out + image * job.plane * job.channels, instructions);
            begin += last - first;
        }
    };
    run_in_parts(images.size() * shape.height, 1, num_threads, convert);
}

}  // namespace penstock

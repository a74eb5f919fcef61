/* The limits of the scenario `stack`: rows copied into a batch, and images normalised into one.
 *
 * Both write memory that the caller owns and has written before. `copy_rows` copies at the rate of one thread.
 * `normalize` is the plain loop, compiled for this processor. It rounds the product and the sum separately, like all
 * contestants, so that bytes can be compared.
 */
#include <stdint.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { CHANNELS = 3 };

void copy_rows(const void *const *rows, int64_t count, int64_t row_bytes, char *batch) {
    for (int64_t row = 0; row < count; ++row) {
        memcpy(batch + row * row_bytes, rows[row], (size_t)row_bytes);
    }
}

static void normalize_image(const uint8_t *restrict pixels, int64_t count, const float *restrict scale,
                            const float *restrict shift, float *restrict planes) {
    for (int64_t pixel = 0; pixel < count; ++pixel) {
        for (int channel = 0; channel < CHANNELS; ++channel) {
            const float product = (float)pixels[pixel * CHANNELS + channel] * scale[channel];
            planes[channel * count + pixel] = product + shift[channel];
        }
    }
}

void normalize(const uint8_t *pixels, int64_t images, int64_t count, const float *scale, const float *shift,
               float *batch) {
    for (int64_t image = 0; image < images; ++image) {
        const int64_t first = image * count * CHANNELS;
        normalize_image(pixels + first, count, scale, shift, batch + first);
    }
}

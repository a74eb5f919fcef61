/* The limit of the scenario `tokens`: copies windows of tokens, in a given order, into a batch.
 *
 * `gather` fills one batch of new memory that the caller owns; the caller calls it once a batch, as a loader would. It
 * prefetches the first cache lines of later rows, as Penstock's own gather does, so that the limit is as fast as
 * possible. `gather_as_int32` casts each token as it copies it. `gather_pass` copies all windows without returning to
 * the caller between batches: it allocates new memory for each batch and frees it. It delivers nothing, so it is faster
 * than anything that gives batches to Python.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AHEAD = 8, LINES_AHEAD = 4, LINE_BYTES = 64 };

static void prefetch(const uint16_t *window) {
    for (int line = 0; line < LINES_AHEAD; ++line) {
        __builtin_prefetch((const char *)window + line * LINE_BYTES);
    }
}

void gather(const uint16_t *tokens, const int64_t *starts, int64_t count, int64_t length, uint16_t *batch) {
    for (int64_t row = 0; row < count; ++row) {
        if (row + ROWS_AHEAD < count) {
            prefetch(tokens + starts[row + ROWS_AHEAD]);
        }
        memcpy(batch + row * length, tokens + starts[row], (size_t)length * sizeof(uint16_t));
    }
}

void gather_as_int32(const uint16_t *tokens, const int64_t *starts, int64_t count, int64_t length, int32_t *batch) {
    for (int64_t row = 0; row < count; ++row) {
        if (row + ROWS_AHEAD < count) {
            prefetch(tokens + starts[row + ROWS_AHEAD]);
        }
        const uint16_t *window = tokens + starts[row];
        for (int64_t token = 0; token < length; ++token) {
            batch[row * length + token] = window[token];
        }
    }
}

int64_t gather_pass(const uint16_t *tokens, const int64_t *starts, int64_t count, int64_t length, int64_t batch_size) {
    volatile uint16_t last = 0;
    for (int64_t first = 0; first < count; first += batch_size) {
        const int64_t rows = count - first < batch_size ? count - first : batch_size;
        uint16_t *batch = malloc((size_t)(rows * length) * sizeof(uint16_t));
        if (batch == NULL) {
            return -1;
        }
        gather(tokens, starts + first, rows, length, batch);
        last = batch[rows * length - 1];
        free(batch);
    }
    (void)last;
    return count;
}

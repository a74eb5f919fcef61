/* The limit of the scenario `packing`: packs documents into sequences by first fit, in one bare loop.
 *
 * A document is put into the first open sequence with room for it. If there is none, a new sequence is opened, and the
 * oldest one is closed if there are already OPEN of them. Longer documents are cut. A closed sequence is written at
 * once: its tokens, the number of each token's document, its position in the document, and zeros after the last one.
 * `pack` returns when it has filled the caller's rows, and continues from there at the next call.
 */
#include <stdint.h>
#include <string.h>

enum { OPEN = 64, PIECES = 2048 + 24 }; /* not a power of two: sequences' first pieces share no cache set */

typedef struct {
    int64_t from;
    int64_t length;
} Piece;

typedef struct {
    int64_t document;
    int64_t offset;
    int64_t count;
    int64_t is_ready;
    int64_t room[OPEN];     /* of the open sequences, oldest first */
    int64_t slot[OPEN];     /* the slots of their pieces */
    int64_t pieces[OPEN];   /* number of pieces, by slot */
    Piece piece[OPEN][PIECES];
} Packer;

int64_t packer_bytes(void) {
    return (int64_t)sizeof(Packer);
}

static void write_row(const Packer *packer, int64_t slot, const uint16_t *tokens, int64_t capacity, uint16_t *row,
                      int32_t *ids, int32_t *positions) {
    int64_t at = 0;
    for (int64_t number = 0; number < packer->pieces[slot]; ++number) {
        const Piece piece = packer->piece[slot][number];
        memcpy(row + at, tokens + piece.from, (size_t)piece.length * sizeof(uint16_t));
        for (int64_t place = 0; place < piece.length; ++place) {
            ids[at + place] = (int32_t)(number + 1);
            positions[at + place] = (int32_t)place;
        }
        at += piece.length;
    }
    memset(row + at, 0, (size_t)(capacity - at) * sizeof(uint16_t));
    memset(ids + at, 0, (size_t)(capacity - at) * sizeof(int32_t));
    memset(positions + at, 0, (size_t)(capacity - at) * sizeof(int32_t));
}

static void close_sequence(Packer *packer, int64_t bin) {
    const int64_t slot = packer->slot[bin];
    const size_t behind = (size_t)(packer->count - bin - 1) * sizeof(int64_t);
    memmove(packer->room + bin, packer->room + bin + 1, behind);
    memmove(packer->slot + bin, packer->slot + bin + 1, behind);
    --packer->count;
    packer->slot[packer->count] = slot; /* free slots follow the open ones */
}

int64_t pack(Packer *packer, const uint16_t *tokens, const int64_t *starts, int64_t documents, int64_t capacity,
             int64_t rows, uint16_t *out, int32_t *ids, int32_t *positions) {
    int64_t row = 0;
    for (int64_t bin = 0; bin < OPEN && !packer->is_ready; ++bin) {
        packer->slot[bin] = bin;
    }
    packer->is_ready = 1;
    while (row < rows) {
        int64_t full = -1;
        if (packer->document < documents) {
            const int64_t from = starts[packer->document] + packer->offset;
            const int64_t left = starts[packer->document + 1] - from;
            const int64_t length = left < capacity ? left : capacity;
            int64_t bin = 0;
            while (bin < packer->count && packer->room[bin] < length) {
                ++bin;
            }
            if (bin < packer->count || packer->count < OPEN) {
                if (bin == packer->count) {
                    packer->room[bin] = capacity;
                    packer->pieces[packer->slot[bin]] = 0;
                    ++packer->count;
                }
                const int64_t slot = packer->slot[bin];
                packer->piece[slot][packer->pieces[slot]++] = (Piece){from, length};
                packer->room[bin] -= length;
                packer->offset = left > length ? packer->offset + length : 0;
                packer->document += left > length ? 0 : 1;
                if (packer->room[bin] > 0) {
                    continue;
                }
                full = bin;
            } else {
                full = 0;
            }
        } else if (packer->count > 0) {
            full = 0;
        } else {
            break;
        }
        write_row(packer, packer->slot[full], tokens, capacity, out + row * capacity, ids + row * capacity,
                  positions + row * capacity);
        close_sequence(packer, full);
        ++row;
    }
    return row;
}

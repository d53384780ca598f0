// A mask over a warp's part of a tile, as bits.
#pragma once

#include "common/place.cuh"

// The value of another lane.
template <typename T> __device__ inline T shuffled(const T& value, int lane) {
    constexpr int kWords = (static_cast<int>(sizeof(T)) + 3) / 4;
    T result = value;
    if constexpr (!__is_empty(T)) {
        unsigned words[kWords] = {};
        memcpy(words, &value, sizeof(T));
#pragma unroll
        for (int i = 0; i < kWords; ++i)
            words[i] = __shfl_sync(0xffffffffu, words[i], lane);
        memcpy(&result, words, sizeof(T));
    }
    return result;
}

// Of a row's 32 keys, those of a lane: two bits of each byte, which move together.
__device__ inline unsigned own_bits(unsigned all, int lane) {
    const unsigned bits = all >> lane % 4 * 2 & 0x03030303u;
    return (bits | bits >> 6 | bits >> 12 | bits >> 18) & 0xffu;
}

// What the 16 rows of a warp from first_row on see of kKeys keys. A lane owns rows lane / 4 and
// that plus 8, whose values are `rows`, and in each eight keys the two from lane % 4 * 2 on: bit j
// of visible[r] is its j-th key in its row r. Called by whole warps.
//
// Which of two ways goes through the words: each lane takes its bits out of every row's, or keeps
// its own rows' words and takes its bits out of these at the end, an eighth of the work. The second
// has not run on a GPU yet.
constexpr bool kKeepsWords = false;

// Lanes share the work by keys, so that what the program reads for a key is read once by a warp,
// all of it at once; and go through the rows together.
template <int kKeys>
__device__ inline void look_together(unsigned (&visible)[2], const AttentionArguments& attention,
                                     const mod::Arguments& arguments, const HeadPlace& place,
                                     const mod::Row (&rows)[2], int first_row, int first_key) {
    constexpr int kWords = (kKeys + 31) / 32;
    static_assert(kKeys <= 128, "a bit for each of a lane's keys");
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto kv_of = [&](int word) {
        return min(first_key + 32 * word + lane, attention.kv_len - 1) +
               static_cast<int>(attention.kv_offset);
    };
    mod::Column columns[kWords];
#pragma unroll
    for (int word = 0; word < kWords; ++word)
        columns[word] = mod::at_column(arguments, place.launch, place.head, place.b, place.h,
                                       place.h_kv, kv_of(word));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        visible[half] = 0;
        unsigned own[kWords] = {};
#pragma unroll 2
        for (int i = 0; i < 8; ++i) {
            const mod::Row row = shuffled(rows[half], 4 * i);
            const int q = min(first_row + 8 * half + i, attention.q_len - 1) +
                          static_cast<int>(attention.q_offset);
#pragma unroll
            for (int word = 0; word < kWords; ++word) {
                const int key = 32 * word + lane;
                const mod::At at{arguments, place.launch, place.head, row, columns[word],
                                 place.b,   place.h,      place.h_kv, q,   kv_of(word)};
                const bool seen =
                    key < kKeys && first_key + key < attention.kv_len && mod::visible(at);
                const unsigned all = __ballot_sync(0xffffffffu, seen);
                if constexpr (kKeepsWords) {
                    own[word] = i == lane / 4 ? all : own[word];
                } else {
                    const unsigned bits = own_bits(all, lane);
                    if (i == lane / 4) visible[half] |= bits << 8 * word;
                }
            }
        }
        if (kKeepsWords)
#pragma unroll
            for (int word = 0; word < kWords; ++word)
                visible[half] |= own_bits(own[word], lane) << 8 * word;
    }
}

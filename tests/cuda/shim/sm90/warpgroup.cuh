// Stands in for the device file of the same name: one thread plays all, one after the other.
#pragma once

#include "common/again.cuh"
#include "common/shared_words.cuh"

// A tile of 16 bits, [queries][keys], as stmatrix and the swizzle of 128 bytes leave it: panels of
// 64 keys.
inline void store_tile(unsigned to, int queries, int keys, const unsigned short* elements) {
    for (int q = 0; q < queries; ++q)
        for (int key = 0; key < keys; ++key) {
            const int byte = q * 128 + key % 64 * 2;
            std::memcpy(memory_of_block + to + key / 64 * 128 * queries +
                            (byte ^ (byte >> 3 & 0x70)),
                        elements++, 2);
        }
}

// Of the beginning of the block's memory.
inline unsigned shared_address(const void*) { return 0; }

// Floats of a table in [first_of_tables, end_of_tables), and how often one outside was asked for.
static unsigned first_of_tables = 0, end_of_tables = 0;
static int reads_outside_tables = 0;
inline float load_shared_float(unsigned from) {
    if (from < first_of_tables || from + 4 > end_of_tables)
        __atomic_fetch_add(&reads_outside_tables, 1, __ATOMIC_RELAXED);
    return loaded<float>(from);
}
inline float load_shared_float_if(bool condition, unsigned from) {
    return condition ? load_shared_float(from) : 0;
}
inline unsigned short load_shared_half(unsigned from) { return loaded<unsigned short>(from); }
inline void load_shared(unsigned from, float (&x)[2]) {
    x[0] = loaded<float>(from);
    x[1] = loaded<float>(from + 4);
}
inline void load_shared(unsigned from, float (&x)[4]) {
    std::memcpy(x, memory_of_block + from, sizeof x);
}
inline void load_shared(unsigned from, unsigned (&x)[2]) {
    std::memcpy(x, memory_of_block + from, sizeof x);
}
// Lanes name rows for each other here; what one of them gets is nothing it could have asked for.
inline void load_matrices(unsigned, unsigned& x, unsigned& y, unsigned& z, unsigned& w) {
    x = y = z = w = 0;
}
inline void load_transposed(unsigned, unsigned (&words)[2]) { words[0] = words[1] = 0; }
inline void publish_shared() {}
inline void store_shared(unsigned to, float x, float y, float z, float w) {
    const float words[] = {x, y, z, w};
    std::memcpy(memory_of_block + to, words, sizeof words);
}
inline void store_shared(unsigned to, float x, float y) {
    const float words[] = {x, y};
    std::memcpy(memory_of_block + to, words, sizeof words);
}
inline void compute_after(float&, float) {}
inline void keep(unsigned&) {}
inline void keep(float*&) {}
template <int kCount> void pin(float (&)[kCount]) {}
template <typename T> void read_again(const T&) {}
template <typename T> T uniform(T x) {
    return warp_of_thread == nullptr ? x : __shfl_sync(0xffffffffu, x, 0);
}
inline void add_float_if(bool condition, float* to, float x) {
    if (condition) add_float(to, x);
}
inline void store_float(float* to, float x) { *to = x; }
// At 16 aligned bytes.
inline void store_floats(float* to, const float* four) {
    if (reinterpret_cast<unsigned long long>(to) % 16 != 0) std::abort();
    std::copy_n(four, 4, to);
}
inline void add_floats(float* to, const float* four) {
    if (reinterpret_cast<unsigned long long>(to) % 16 != 0) std::abort();
    for (int i = 0; i < 4; ++i)
        add_float(to + i, four[i]);
}
inline void store_float_if(bool condition, float* to, float x) {
    if (condition) store_float(to, x);
}
inline unsigned largest_of_halves(unsigned x, unsigned y) {
    return std::max(x >> 16, y >> 16) << 16 | std::max(x & 0xffffu, y & 0xffffu);
}

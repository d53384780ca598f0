// Stands in for the device file of the same name: products of a warp whose lanes are threads of the
// host. 16-bit elements only.
#pragma once

#include "common/element.cuh"
#include "sm80/tile.cuh"
#include "sm90/warpgroup.cuh"

namespace sm80 {

template <typename E> struct OperandA {
    unsigned registers[4];
};
template <typename E> struct OperandB {
    unsigned registers[2];
};

template <typename E> constexpr int kStepK = 32 / static_cast<int>(sizeof(E));
template <typename E> unsigned pack(float low, float high) {
    const E both[] = {flexc_from_float<E>(low), flexc_from_float<E>(high)};
    unsigned word;
    std::memcpy(&word, both, sizeof word);
    return word;
}
inline int lane_index() { return static_cast<int>(threadIdx.x) & 31; }

// What every lane has.
template <int kCount>
void gather(const unsigned (&mine)[kCount], unsigned (&of_lanes)[kCount][32]) {
    for (int i = 0; i < kCount; ++i)
        warp_of_thread->exchange(mine[i], [&](const unsigned long long* values) {
            for (int lane = 0; lane < 32; ++lane)
                of_lanes[i][lane] = static_cast<unsigned>(values[lane]);
            return 0;
        });
}

inline void load_matrices(unsigned (&r)[4], unsigned address) {
    unsigned rows[1][32];
    gather({address}, rows);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int matrix = 0; matrix < 4; ++matrix)
        r[matrix] = loaded<unsigned>(rows[0][8 * matrix + lane / 4] + lane % 4 * 4);
}
inline void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
    unsigned rows[1][32];
    gather({address}, rows);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](int row) {
            return unsigned{
                loaded<unsigned short>(rows[0][8 * matrix + lane % 4 * 2 + row] + lane / 4 * 2)};
        };
        r[matrix] = element(0) | element(1) << 16;
    }
}

template <typename E> void multiply(float (&c)[4], const OperandA<E>& a, const OperandB<E>& b) {
    unsigned left[4][32], right[2][32];
    gather(a.registers, left);
    gather(b.registers, right);
    const auto half = [](unsigned pair, int side) {
        return side == 0 ? flexc_first(E{}, pair) : flexc_second(E{}, pair);
    };
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) {
            const int slot = k % 8 / 2, column = lane % 4 * 2 + i % 2;
            c[i] += half(left[k / 8 * 2 + i / 2][lane / 4 * 4 + slot], k % 2) *
                    half(right[k / 8][column * 4 + slot], k % 2);
        }
}

} // namespace sm80

// The threads that copy biases: one 16-bit number for each query and key of a tile.
#pragma once

#include "common/place.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// 16 bytes (PTX ISA, "cp.async").
__device__ inline void copy_async(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Arrives when all earlier copies of this thread have.
__device__ inline void arrive_after_copies(Barrier barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address)
                 : "memory");
}
__device__ inline void store_shared_half(unsigned to, unsigned short x) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}

// A matrix of the program: rows are queries.
struct BiasMatrix {
    const mod::BiasElement* corner; // of the first query and key that there are
    long long row_step, key_step;   // in elements
    bool in_chunks;                 // eight keys are 16 aligned bytes, in every row

    __device__ BiasMatrix(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place) {
        const auto address = [&](int row) {
            const int q = row + static_cast<int>(attention.q_offset);
            const int kv = static_cast<int>(attention.kv_offset);
            const mod::Row of_row =
                mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
            const mod::Column of_key = mod::at_column(arguments, place.launch, place.head, place.b,
                                                      place.h, place.h_kv, kv);
            return mod::bias_address({arguments, place.launch, place.head, of_row, of_key, place.b,
                                      place.h, place.h_kv, q, kv});
        };
        corner = address(0);
        row_step = attention.q_len > 1 ? address(1) - corner : 0;
        key_step = mod::bias_step(arguments);
        in_chunks = key_step == 1 && row_step % 8 == 0 &&
                    reinterpret_cast<unsigned long long>(corner) % 16 == 0;
    }
};

constexpr int kChunks = mod::kKeyTile / 8; // of eight keys, in a row

// Swizzled as the copy engine does.
__device__ inline unsigned chunk_offset(int row, int chunk) {
    return chunk / 8 * kQueryPanel + row * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
}

// A tile with all its queries and keys, in chunks. A thread keeps its chunk and steps down the
// rows.
__device__ inline void copy_whole_tile(const BiasMatrix& matrix, int first_row, int first_key,
                                       unsigned to, int thread) {
    constexpr int kRows = kBiasThreads / kChunks; // between a thread's
    static_assert(!mod::kReadsBias || (kBiasThreads % kChunks == 0 && 8 % kRows == 0));
    const int row = thread / kChunks, chunk = thread % kChunks;
    const mod::BiasElement* from =
        matrix.corner + (first_row + row) * matrix.row_step + first_key + 8 * chunk;
    const long long step = kRows * matrix.row_step;
    // Rows that are eight apart are swizzled alike.
    unsigned target[8 / kRows];
#pragma unroll
    for (int i = 0; i < 8 / kRows; ++i)
        target[i] = to + chunk_offset(row + i * kRows, chunk);
#pragma unroll 2
    for (int down = 0; down < mod::kQueryTile; down += 8) {
#pragma unroll
        for (int i = 0; i < 8 / kRows; ++i) {
            copy_async(target[i] + down * kRowBytes, from);
            from += step;
        }
    }
}

// Any tile, complete on return. Rows past the end repeat the last, and what is past the last key is
// not written: the mask hides it.
__device__ inline void copy_tile(const AttentionArguments& attention, const BiasMatrix& matrix,
                                 int first_row, int first_key, unsigned to, int thread) {
    const int rows = attention.q_len - first_row, keys = attention.kv_len - first_key;
#pragma unroll 1
    for (int i = thread; i < mod::kQueryTile * kChunks; i += kBiasThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const unsigned target = to + chunk_offset(row, chunk);
        const mod::BiasElement* const from =
            matrix.corner + (first_row + min(row, rows - 1)) * matrix.row_step;
        const int valid = min(max(keys - 8 * chunk, 0), 8);
        if (matrix.in_chunks && valid == 8) {
            copy_async(target, from + first_key + 8 * chunk);
        } else {
            for (int key = 0; key < valid; ++key)
                store_shared_half(target + 2 * key,
                                  from[(first_key + 8 * chunk + key) * matrix.key_step].bits);
        }
    }
    wait_for_copies();
}

__device__ inline void produce_biases(const AttentionArguments& attention,
                                      const mod::Arguments& arguments, const Shared& shared,
                                      int thread) {
    Position<Queries> query;
    Position<Biases> bias;
#pragma unroll 1
    while (true) {
        shared.queries.full(query.stage).wait(query.parity);
        const Task task = Task::load(shared.task(query.stage));
        if (task.is_none()) break;
        __syncwarp();
        if (thread % 32 == 0) shared.queries.empty(query.stage).arrive();
        query.advance();
        const HeadPlace place(arguments, task.b, task.h, task.h_kv, task.low, task.high);
        const BiasMatrix matrix(attention, arguments, place);
#pragma unroll 1
        for (int block = task.end - 1; block >= task.begin; --block) {
            shared.biases.empty(bias.stage).wait(bias.parity ^ 1);
            const int first_key = block * mod::kKeyTile;
            const unsigned to = shared.biases.at(bias.stage);
            const Barrier full = shared.biases.full(bias.stage);
            if (matrix.in_chunks && task.first_row + mod::kQueryTile <= attention.q_len &&
                first_key + mod::kKeyTile <= attention.kv_len) {
                copy_whole_tile(matrix, task.first_row, first_key, to, thread);
                arrive_after_copies(full);
            } else {
                copy_tile(attention, matrix, task.first_row, first_key, to, thread);
                full.arrive();
            }
            bias.advance();
        }
    }
}

} // namespace sm90

// The threads that copy biases: one number for each query and key of a tile.
#pragma once

#include "sm90/copy_async.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

constexpr int kChunkKeys = kBiasChunk / kBiasBytes;

// A matrix of the program: rows are queries.
struct BiasMatrix {
    const mod::BiasElement* corner; // of the first query and key that there are
    long long row_step, key_step;   // in elements
    bool in_chunks;                 // rows start at 16 aligned bytes; no gaps between keys

    __device__ BiasMatrix(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place) {
        const auto address = [&](int row) {
            return visit_element(attention, arguments, place, row, 0,
                                 [](const mod::At& at) { return mod::bias_address(at); });
        };
        corner = address(0);
        row_step = attention.q_len > 1 ? address(1) - corner : 0;
        key_step = mod::bias_step(arguments);
        in_chunks = key_step == 1 && row_step % kChunkKeys == 0 &&
                    reinterpret_cast<unsigned long long>(corner) % 16 == 0;
    }
};

// A thread keeps its chunk and steps down the rows; some threads have none. Rows past the end are
// left as they are: nobody stores what they become.
__device__ inline void copy_chunks(const BiasMatrix& matrix, int first_row, int rows, int first_key,
                                   int keys, unsigned to, Barrier full, int thread) {
    constexpr int kChunks = mod::kKeyTile / kChunkKeys, kRows = kBiasThreads / kChunks;
    const int first = thread / kChunks, key = thread % kChunks * kChunkKeys;
    if (first < kRows && key < keys) {
        const mod::BiasElement* from =
            matrix.corner + (first_row + first) * matrix.row_step + first_key + key;
#pragma unroll 4
        for (int row = first; row < rows; row += kRows) {
            copy_async(to + bias_chunk_at(row, thread % kChunks), from);
            from += kRows * matrix.row_step;
        }
    }
    arrive_after_copies(full);
}

// Where a head's first element is in all that the copy engine sees as one matrix.
struct BiasOrigin {
    int row = 0, column = 0;

    __device__ BiasOrigin(const BiasMatrix& matrix, const ForwardMaps& maps) {
        if (maps.biases_from == nullptr) return;
        const long long elements =
            matrix.corner - static_cast<const mod::BiasElement*>(maps.biases_from);
        row = static_cast<int>(elements / maps.bias_row_step);
        column = static_cast<int>(elements % maps.bias_row_step);
    }
};

// One thread, for the copy engine. What is outside the matrix arrives as zeros.
__device__ inline void load_boxes(const ForwardMaps& maps, const BiasOrigin& origin, int first_row,
                                  int first_key, unsigned to, Barrier full) {
    full.arrive_expecting(kBiasPanels * kBiasPanelBytes);
#pragma unroll
    for (int panel = 0; panel < kBiasPanels; ++panel)
        load_box(to + panel * kBiasPanelBytes, maps.biases, origin.row + first_row,
                 origin.column + first_key + panel * (kBiasLine / kBiasBytes), full);
}

// Any layout.
__device__ inline void copy_elements(const BiasMatrix& matrix, int first_row, int rows,
                                     int first_key, int keys, unsigned to, Barrier full,
                                     int thread) {
    for (int key = thread; key < keys; key += kBiasThreads) {
        const mod::BiasElement* from =
            matrix.corner + first_row * matrix.row_step + (first_key + key) * matrix.key_step;
        const unsigned column = to + key % kChunkKeys * kBiasBytes;
#pragma unroll 4
        for (int row = 0; row < rows; ++row) {
            store_shared_element(column + bias_chunk_at(row, key / kChunkKeys), *from);
            from += matrix.row_step;
        }
    }
    full.arrive();
}

__device__ inline void produce_biases(const AttentionArguments& attention,
                                      const mod::Arguments& arguments, const ForwardMaps& maps,
                                      const Shared& shared, int thread) {
    Position<Biases> bias;
    visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
        const BiasMatrix matrix(attention, arguments, place);
        const BiasOrigin origin(matrix, maps);
        const int rows = min(attention.q_len - task.first_row, mod::kQueryTile);
#pragma unroll 1
        for (int block = task.end - 1; block >= task.begin; --block) {
            shared.biases.empty(bias.stage).wait(bias.parity ^ 1);
            const int first_key = block * mod::kKeyTile;
            const unsigned to = shared.biases.at(bias.stage);
            const Barrier full = shared.biases.full(bias.stage);
            const int keys = min(attention.kv_len - first_key, mod::kKeyTile);
            if (maps.biases_from != nullptr)
                load_boxes(maps, origin, task.first_row, first_key, to, full);
            else if (matrix.in_chunks && keys % kChunkKeys == 0)
                copy_chunks(matrix, task.first_row, rows, first_key, keys, to, full, thread);
            else
                copy_elements(matrix, task.first_row, rows, first_key, keys, to, full, thread);
            bias.advance();
        }
    });
}

} // namespace sm90

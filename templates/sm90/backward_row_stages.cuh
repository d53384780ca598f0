// Values that the program computes for each of a tile's queries, by one warp of the producer
// warpgroup: a class for each way that registers allow.
#pragma once

#include "common/select.h"
#include "sm90/backward_key_tile.cuh"
#include "sm90/backward_registers.cuh"

namespace sm90 {

// A tile of queries of one head.
struct RowTile {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const KeyTile& keys;
    const HeadPlace& place;
    const int first_row;
    const int step; // tiles of queries before this one

    __device__ void stage_row(int i, const mod::Launch& launch) const {
        const int q = keys.length(attention).q_idx(first_row + i);
        Shared::rows(step % 2)[i] =
            mod::at_row(arguments, launch, place.head, place.b, place.h, place.h_kv, q);
    }
};

// Computes a lane's rows together.
struct RowsTogether {
    static __device__ int stage(int step) { return step % 2; }
    static __device__ void compute(const RowTile& tile) {
#pragma unroll
        for (int i = static_cast<int>(threadIdx.x) % 32; i < mod::kQueryTile; i += 32)
            tile.stage_row(i, tile.place.launch);
    }
};
// Computes a lane's rows one by one, which saves registers where they are long.
struct RowsOneByOne : RowsTogether {
    static __device__ void compute(const RowTile& tile) {
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x) % 32; i < mod::kQueryTile; i += 32) {
            read_again(tile.arguments);
            tile.stage_row(i, mod::at_launch(tile.arguments));
        }
    }
};
// Computes eight bytes of a row at a time where registers are short, so that parts share no
// registers. Short tiles are unrolled, which saves the loop counter.
struct RowsInParts {
    static __device__ int stage(int step) { return computed_again(step) % 2; }
    static __device__ void compute(const RowTile& tile) {
        constexpr int kRowBytes = sizeof(mod::Row);
        constexpr int kUnrolled = mod::kQueryTile == 64 ? 2 : 1;
        const auto& [attention, arguments, keys, place, first_row, step] = tile;
#pragma unroll kUnrolled
        for (int first = 0; first < mod::kQueryTile; first += 32)
#pragma unroll
            for (int byte = 0; byte < kRowBytes; byte += 8) {
                read_again(arguments);
                TileLength length = keys.length(attention);
                const int q =
                    min(first_row + first + lane_again(), computed_again(length.queries()) - 1) +
                    static_cast<int>(length.q_offset());
                const mod::Row row = mod::at_row(arguments, mod::at_launch(arguments), place.head,
                                                 keys.b, place.h, keys.h_kv, q);
                mod::Row& staged = Shared::rows(computed_again(step) % 2)[first + lane_again()];
                memcpy(reinterpret_cast<char*>(&staged) + byte,
                       reinterpret_cast<const char*>(&row) + byte, min(kRowBytes - byte, 8));
            }
    }
};
using RowsOfLane =
    Select<kSaves.beside, RowsInParts,
           Select<kMaskIsLong && (sizeof(mod::Row) > sizeof(int)), RowsOneByOne, RowsTogether>>;

// Fills a stage; every lane arrives for the rows that it has written.
struct RowStages {
    static __device__ void fill(const Shared& shared, const RowTile& tile) {
        shared.queries_empty(tile.step % 2).wait(tile.step / 2 % 2 ^ 1);
        RowsOfLane::compute(tile);
        shared.queries_full(RowsOfLane::stage(tile.step)).arrive();
    }
};
// Stages nothing: the warp that loads queries does, or rows are computed where elements need them.
struct NoRowStages {
    static __device__ void fill(const Shared&, const RowTile&) {}
};
using StagedRowTiles = Select<kWarpStagesRows, RowStages, NoRowStages>;

} // namespace sm90

// What the warp that loads tiles of queries and d_out stages beside them: a class for each, with
// one interface, for one head and tile of keys.
#pragma once

#include "common/select.h"
#include "sm90/backward_dense_bias.cuh"
#include "sm90/backward_index_2d_tables.cuh"
#include "sm90/backward_row_stages.cuh"

namespace sm90 {

// Nothing.
struct QueriesAlone {
    struct Values {};
    static constexpr bool kTakesWarp = false;
    // Returns whether this thread is the one that issues loads.
    static __device__ bool loads() { return true; }

    __device__ QueriesAlone(const AttentionArguments&, const mod::Arguments&, const KeyTile&,
                            const HeadPlace&) {}
    // Called before the loads of a tile, and after them.
    static __device__ void read(Values&, int) {}
    static __device__ void fill(Values&, const Shared&, int, int, Barrier) {}
};

struct QueriesOfWarp {
    static constexpr bool kTakesWarp = true;
    static __device__ bool loads() { return threadIdx.x % 32 == 0; }
};

// What is read by rows and columns of the 2-D key index.
class QueriesWithIndex2d : public QueriesOfWarp {
  public:
    using Values = Index2dTables::Rows;

    __device__ QueriesWithIndex2d(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const KeyTile& keys,
                                  const HeadPlace& place)
        : attention_(attention), arguments_(arguments), place_(place), first_key_(keys.first_kv),
          tables_(attention, keys.first_kv) {}

    __device__ void read(Values& values, int tile_query) const {
        if (tables_.is_inside()) tables_.read(values, tile_query);
    }
    __device__ void fill(Values& values, const Shared& shared, int tile_query, int step,
                         Barrier queries) {
        const unsigned memory = shared.index_2d(step % 2);
        if (!tables_.is_known()) {
            tables_.find(arguments_, place_);
            if (tables_.is_inside()) tables_.read(values, tile_query);
        }
        __syncwarp();
        if (tables_.is_inside())
            tables_.fill(values, tile_query, memory, queries);
        else
            Index2dStage{attention_, arguments_, place_, tile_query, first_key_, memory}.fill(
                queries);
    }

  private:
    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    const int first_key_;
    Index2dTables tables_;
};

// What the program computes for each query, and tiles of biases, where the warp that does so
// elsewhere sums tiles.
class QueriesWithValues : public QueriesOfWarp {
  public:
    struct Values {};

    __device__ QueriesWithValues(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, const KeyTile& keys,
                                 const HeadPlace& place)
        : attention_(attention), arguments_(arguments), keys_(keys), place_(place),
          biases_(attention, arguments, place, keys.first_kv) {}

    static __device__ void read(Values&, int) {}
    __device__ void fill(Values&, const Shared& shared, int tile_query, int step,
                         Barrier queries) const {
        __syncwarp();
        if constexpr (kLoaderStagesRows) {
            RowsOfLane::compute({attention_, arguments_, keys_, place_, tile_query, step});
            queries.arrive();
        }
        if constexpr (kLoaderCopiesBiases)
            CopiedBias::copy(attention_, shared, biases_, tile_query, keys_.first_kv, step);
    }

  private:
    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const KeyTile& keys_;
    const HeadPlace& place_;
    const CopiedBias::Source biases_;
};

using BesideQueries =
    Select<kStagesIndex2d, QueriesWithIndex2d,
           Select<kLoaderStagesRows || kLoaderCopiesBiases, QueriesWithValues, QueriesAlone>>;

} // namespace sm90

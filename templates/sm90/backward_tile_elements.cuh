// A thread's elements of a tile of scores, as the program sees them: their positions, what was
// computed or staged for them before, and which are visible. Scores are transposed: a thread has
// two keys, and a quarter of its warpgroup's queries. Here a tile's queries are those of the
// warpgroup alone.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "sm90/backward_elements.cuh"
#include "sm90/backward_fragments.cuh"
#include "sm90/backward_index_2d_reads.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/backward_row_statistics.cuh"
#include "sm90/key_columns.cuh"
#include "sm90/pair_sums.cuh"
#include "sm90/visible_queries.cuh"

namespace sm90 {

// A thread's first key, in the tensor, and its first query, in a tile of queries, kept in
// registers.
struct KeptPositions {
    int first_key, first_query;
    __device__ void start_tile() {}
};
// The same where registers are short: both are computed again for every tile.
struct PositionsAgain : KeptPositions {
    __device__ void start_tile() {
        first_query = computed_again(first_query);
        first_key = computed_again(first_key);
    }
};
// The same; the lane's index is read again, too.
struct PositionsByLane : KeptPositions {
    __device__ void start_tile() {
        first_query = lane_again() % 4 * 2;
        first_key = computed_again(first_key);
    }
};
using ThreadPositions =
    Select<!kSaves.positions_again || mod::ReadGradients::kComeFromElements, KeptPositions,
           Select<kSaves.places_again, PositionsByLane, PositionsAgain>>;

// What the program computes for each query of a tile is computed where an element needs it.
struct ComputedRows {
    __device__ void use_stage(int, int) {}
    __device__ const mod::Row* staged() const { return nullptr; }
    template <typename Compute> __device__ mod::Row of(int, int, Compute compute) const {
        return compute();
    }
};
// What the program computes for each query of a tile is staged by a producer warp.
class StagedRows {
  public:
    __device__ void use_stage(int stage, int first) { rows_ = Shared::rows(stage) + first; }
    __device__ const mod::Row* staged() const { return rows_; }
    template <typename Compute> __device__ mod::Row of(int first_query, int query, Compute) const {
        // Computed again, or addresses of staged rows would be kept in registers from tile to tile.
        const int own =
            kSaves.modifies_in_parts && !kIsLong ? computed_again(first_query) : first_query;
        return rows_[own + query];
    }

  private:
    const mod::Row* rows_;
};
using TileRows = Select<kStagesRows, StagedRows, ComputedRows>;

// The address of a tile's stage for elements of a gradient of tables.
class StageOfWeighted {
  protected:
    __device__ void use_weighted_stage(const Shared& shared, int stage) {
        tile_ = shared.base + kSummedTile + stage * kDScoresBytes;
    }
    __device__ unsigned weighted_tile() const { return tile_; }

  private:
    unsigned tile_ = 0;
};
class NoStageOfWeighted {
  protected:
    __device__ void use_weighted_stage(const Shared&, int) {}
    __device__ unsigned weighted_tile() const { return 0; }
};

// A thread's elements of one warp's 16 keys, for one query head.
class TileElements : protected Select<kHasWeightedTile, StageOfWeighted, NoStageOfWeighted> {
  public:
    __device__ TileElements(const KernelArguments& attention, const mod::Arguments& arguments,
                            const HeadPlace& place, TileLength length, int tile_key, int warp_key,
                            int lane)
        : attention_(attention), arguments_(arguments), place_(place), length_(length),
          positions_{warp_key + lane / 4, lane % 4 * 2},
          columns_(length, arguments, place, warp_key, lane),
          queries_(length, arguments, place, columns_, warp_key, lane),
          index_2d_reads_(tile_key, positions_.first_key, positions_.first_query),
          biases_(attention, arguments, place) {
        const int head = place.b * attention.heads + place.h;
        const long long count = distance_count(attention);
        tabulated_count_ = count * attention.batch * attention.heads;
        tabulated_ = attention.distance_values + padded(attention.kv_len) + head * count;
    }

    // Sets the stage of the tile: where its rows are, from the warpgroup's first query on, and what
    // is read by rows and columns of keys as a 2-D key index.
    __device__ void use_stage(const Shared& shared, int stage, int first) {
        positions_.start_tile();
        rows_.use_stage(stage, first);
        index_2d_reads_.use(shared.index_2d(stage));
        use_weighted_stage(shared, stage);
    }

    // Sets the addresses of the tile's biases, and of the warpgroup's part of their gradient.
    __device__ void use_biases(unsigned biases, unsigned gradient, int warp_key) {
        biases_.use(biases, gradient, warp_key);
    }
    __device__ const TileBiases& biases() const { return biases_; }

    // Sets whether the block mask says that nothing of the tile is hidden.
    __device__ void use_block_mask(bool shows_all) { mask_shows_tile_ = shows_all; }

    // Finds which elements of the tile are visible while its MMAs run; where registers are short
    // then, that is done later.
    __device__ VisibleBits evaluate_mask_early(int tile_query) const {
        VisibleBits visible_bits;
        visible_bits.hides = kSaves.evaluates_mask_early && hides_any(tile_query);
        visible_bits.show_all();
        if (visible_bits.hides) evaluate_mask(visible_bits, tile_query);
        return visible_bits;
    }

    // Whether a key of the thread exists, and its element for any query: for reads by heads and
    // keys.
    __device__ bool has_key(int key) const {
        return positions_.first_key + 8 * key < length_.keys();
    }
    __device__ mod::At at_key(const mod::Row& row, int key) const {
        return element(row, key, 0, 0, 0);
    }

  protected:
    __device__ int first_query() const { return positions_.first_query; }

    __device__ bool hides_any(int tile_query) const {
        return !queries_.are_all(tile_query, mask_shows_tile_);
    }
    __device__ void find(unsigned (&visible)[2], int tile_query) const {
        static_assert(kQueries <= 32, "one bit each");
        queries_.find(visible, tile_query, columns_, rows_.staged());
    }
    __device__ void evaluate_mask(VisibleBits& visible_bits, int tile_query) const {
        find(visible_bits.visible, tile_query);
        visible_bits.pack();
    }

    // Calls visit(accumulator, side, statistic) for every element, with a statistic of its query.
    template <typename Visit>
    __device__ void visit_statistic(const RowStatistics& statistics, RowStatistic which,
                                    Visit visit_element) const {
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            float of_queries[2];
            statistics.load(which, first_query(), pair, of_queries);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int key = 0; key < 2; ++key)
                    visit_element(accumulator(key, 2 * pair + side), side, of_queries[side]);
        }
    }

    // Returns tile_query. It is computed again with the products, so that nothing that depends on
    // it is computed before; where elements read memory, also with every few queries, so that no
    // more reads are under way at once; and with every part of the queries.
    static __device__ int again_for(int pair, int tile_query) {
        return pair == 0 || starts_anew(pair) ? computed_again(tile_query) : tile_query;
    }
    // Returns whether queries end before those of a pair. The branch keeps reads and parts apart,
    // or registers spill.
    __device__ bool ends_before(int pair, int tile_query) const {
        return starts_anew(pair) && tile_query + 8 * pair >= length_.queries();
    }

    // What is read for the elements of two queries.
    struct PairReads {
        Index2dReads::Values staged;
        BiasPair biases{};
    };
    // Loads the reads of a pair of queries. kReadsBias: also the copied dense bias.
    template <bool kReadsBias = true> __device__ void load(PairReads& reads, int pair) const {
        index_2d_reads_.load(reads.staged, pair);
        if (kReadsBias) reads.biases = biases_.load(pair);
    }

    // Calls visit(key, accumulator, element) for both elements of the j-th query.
    template <typename Visit>
    __device__ void visit(int tile_query, int j, const PairReads& reads,
                          Visit visit_element) const {
        const int offset = static_cast<int>(length_.q_offset());
        const int first = tile_query + first_query();
        const int inside = min(first + query_of(j), length_.queries() - 1) + offset;
        const mod::Row row = rows_.of(first_query(), query_of(j), [&] {
            return mod::at_row(arguments_, place_.launch, place_.head, place_.b, place_.h,
                               place_.h_kv, inside);
        });
        const int q = mod::ScoreDerivative::kReadsElements ? inside : first + query_of(j) + offset;
#pragma unroll
        for (int key = 0; key < 2; ++key)
            visit_element(key, accumulator(key, j),
                          element(row, key, q, first, j, reads.staged[j % 2][key],
                                  reads.biases.of[j % 2][key]));
    }

    // Finds sums of this pair of queries' elements, and of further ones, if they are found at once.
    // score_of(i): the score of an accumulator.
    template <bool kReadsBias = true, typename Sums, typename ScoreOf>
    __device__ void find_sums(Sums& sums, int tile_query, int pair, ScoreOf score_of) const {
        if constexpr (mod::ElementSums::kElements > 0) {
            const auto visit_pair = [&](int of, const PairReads& reads, auto visit_element) {
#pragma unroll
                for (int j = 2 * of; j < 2 * of + 2; ++j)
                    visit(tile_query, j, reads, [&](int key, int i, const mod::At& at) {
                        visit_element(key, j, i, at);
                    });
            };
            const mod::Row none{};
            sums.find(
                at_key(none, 0), pair,
                [&](int of, auto visit_element) {
                    PairReads reads;
                    load<kReadsBias>(reads, of);
                    visit_pair(of, reads, [&](int key, int j, int i, const mod::At& at) {
                        visit_element(key, j, at, score_of(i));
                    });
                },
                [&](int of, auto visit_element) {
                    visit_pair(of, PairReads{}, [&](int key, int j, int, const mod::At& at) {
                        visit_element(key, j, at);
                    });
                });
        }
    }

    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    TileLength length_;

  private:
    static __device__ bool starts_anew(int pair) {
        return (mod::ScoreDerivative::kReadsElements && pair % 2 == 0) ||
               (kSaves.modifies_in_parts && pair > 0 && pair % kPairsAtOnce == 0);
    }

    // Returns the index of a key as the program sees it. reads: memory is read by it, so that it
    // has to be in the tensor.
    __device__ int key_index(int key, bool reads) const {
        const int position = positions_.first_key + 8 * key;
        return reads ? length_.kv_idx(position) : position + static_cast<int>(length_.kv_offset());
    }
    // first: this thread's first query of the tile, in the tensor; j: which of its queries this is.
    // staged: what reads give by rows and columns of a 2-D key index. bias: that of the copied
    // dense bias.
    __device__ mod::At element(const mod::Row& row, int key, int q, int first, int j,
                               const float* staged = nullptr, float bias = 0) const {
        const int kv = key_index(key, mod::ScoreDerivative::kReadsElements);
        const int first_q =
            mod::ScoreDerivative::kReadsElements ? q : first + static_cast<int>(length_.q_offset());
        return {arguments_,
                place_.launch,
                place_.head,
                row,
                columns_.of(key),
                place_.b,
                place_.h,
                place_.h_kv,
                q,
                kv,
                first_q,
                mod::ScoreDerivative::kReadsElements ? kv : key_index(0, false),
                tabulated_ + (first - positions_.first_key),
                tabulated_count_,
                query_of(j) - 8 * key,
                staged,
                bias};
    }

    ThreadPositions positions_;
    bool mask_shows_tile_ = false; // to every key
    KeyColumns columns_;
    VisibleQueries queries_;
    Index2dReads index_2d_reads_;
    TileRows rows_;
    TileBiases biases_;
    const float* tabulated_;    // entry of distance 0
    long long tabulated_count_; // from one read to the next
};

} // namespace sm90

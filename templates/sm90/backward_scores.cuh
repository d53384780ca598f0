// From products of keys and queries to p, and from P to the gradient of scores. Scores
// are transposed: a thread has two keys, and a quarter of its warpgroup's queries. Whatever is said
// of a tile's queries here is of those of the warpgroup.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "common/row_lse.cuh"
#include "sm90/backward_elements.cuh"
#include "sm90/backward_fragments.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/backward_staging.cuh"
#include "sm90/gradients/registers.cuh"
#include "sm90/key_columns.cuh"
#include "sm90/pack.cuh"
#include "sm90/visible_queries.cuh"

namespace sm90 {

// What a tile's queries have in shared memory, from the first that is the warpgroup's.
struct RowFacts {
    unsigned base;
    // Of query first + 8 * pair and the next; the first is one of eight.
    __device__ void load(RowFact fact, int first, int pair, float (&of)[2]) const {
        const int row = 8 * pair;
        load_shared(base + 4 * (row / 64 * (64 * kRowFacts) + fact * 64 + row % 64 + first), of);
    }
};

// One warp's 16 keys, for one query head.
class ScoreGradients {
  public:
    __device__ ScoreGradients(const KernelArguments& attention, const mod::Arguments& arguments,
                              const HeadPlace& place, TileLength length, int tile_key, int warp_key,
                              int lane)
        : attention_(attention), arguments_(arguments), place_(place), length_(length),
          first_key_(warp_key + lane / 4), first_query_(lane % 4 * 2),
          columns_(length, arguments, place, warp_key, lane),
          queries_(length, arguments, place, columns_, warp_key, lane),
          index_2d_reads_(tile_key, first_key_, first_query_) {
        const int head = place.b * attention.heads + place.h;
        const long long count = distance_count(attention);
        expanded_count_ = count * attention.batch * attention.heads;
        expanded_ = attention.distance_values + padded(attention.kv_len) + head * count;
    }

    // Where the tile's rows are, from the first that is the warpgroup's, and what is read by rows
    // and columns of keys as a 2-D key index.
    __device__ void use_stage(const Shared& shared, int stage, int first) {
        if constexpr (kSaves.positions_again && !mod::kAddsGradients) {
            first_query_ =
                kSaves.places_again ? lane_again() % 4 * 2 : computed_again(first_query_);
            first_key_ = computed_again(first_key_);
        }
        if constexpr (kStagesRows) rows_ = Shared::rows(stage) + first;
        index_2d_reads_.use(shared.index_2d(stage));
    }

    // Where the tile's biases are, and the warpgroup's part of their gradient.
    __device__ void use_biases(unsigned biases, unsigned gradient, int warp_key) {
        biases_ = TileBiases(biases, gradient, warp_key);
    }

    __device__ const TileBiases& biases() const { return biases_; }
    __device__ QuerySummation summation(const Shared& shared) const {
        return {length_, arguments_, place_, shared};
    }

    // Whether the block mask says that nothing of the tile is hidden.
    __device__ void use_block_mask(bool shows_all) { mask_shows_tile_ = shows_all; }

    // What of the tile is visible, found out while its MMAs are under way; where registers are
    // short then, later.
    __device__ Sight look_early(int tile_query) const {
        Sight sight;
        sight.hides = kSaves.looks_early && hides_any(tile_query);
        sight.show_all();
        if (sight.hides) look(sight, tile_query);
        return sight;
    }

    // Products become p, and unless kDifferentiatesFirst leaves that for later, fragments of
    // them. With a derivative folded in, they become its MMAs with the P.
    __device__ void compute_p(Scores& scores, Fragments& p, int tile_query, const RowFacts& facts,
                              Sight sight) const {
        if constexpr (kSaves.subtracts_apart) {
            float lse_log2[2];
            facts.load(kLseLog2Fact, first_query_, 0, lse_log2);
            if (has_large_rows(lse_log2[0]))
                modify_all<true>(scores, p, tile_query, facts);
            else
                modify_all<false>(scores, p, tile_query, facts);
        } else if constexpr (kFolds || mod::kHasScoreMod) {
            modify_all<true>(scores, p, tile_query, facts);
        }
        if constexpr (!kFolds) exponentiate(scores, facts);
        if (kSaves.looks_early ? sight.hides_any() : hides_any(tile_query)) {
            if (!kSaves.looks_early) look(sight, tile_query);
            hide(scores, sight);
            if constexpr (kFolds) hide(p, sight);
        }
        if constexpr (!kFolds && !kDifferentiatesFirst) to_fragments(p, scores);
    }

    // dp, products of d_out and values, become gradients of modified scores, by what compute_p()
    // left: `factors`, or fragments of them.
    __device__ void differentiate(Scores& dp, const Scores& factors, const Fragments& fragments,
                                  const RowFacts& facts) const {
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            float delta[2];
            facts.load(kDeltaFact, first_query_, pair, delta);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int key = 0; key < 2; ++key) {
                    const int i = accumulator(key, 2 * pair + side);
                    float factor = factors[i];
                    if constexpr (!kKeepsFloats) {
                        const unsigned word = fragments[i / 8][i / 2 % 4];
                        factor = side == 0 ? flexc_first(mod::Element{}, word)
                                           : flexc_second(mod::Element{}, word);
                    }
                    dp[i] = factor * (dp[i] - delta[side]);
                }
        }
    }

    // Gradients of modified scores become those of scores, and are added to those of buffers.
    __device__ void finish(Scores& d_scores, int tile_query, GradientSums& sums,
                           QuerySums& query_sums) const {
        if constexpr (kFolds || (!mod::kAddsGradients && mod::kDerivativeIsOne)) return;
        Index2dReads::Values staged;
        BiasPair biases{};
#pragma unroll
        for (int j = 0; j < kQueries; ++j) {
            if (j % 2 == 0) {
                if (ends_before(j / 2, tile_query)) break;
                tile_query = again_for(j / 2, tile_query);
                index_2d_reads_.load(staged, j / 2);
                if (kHoldsBiases) biases = biases_.load(j / 2);
            }
            visit(tile_query, j, staged[j % 2], biases.of[j % 2],
                  [&](int key, int i, const mod::At& at) {
                      const mod::Joint joint = mod::joint(at, 0);
                      const float d_modified = d_scores[i];
                      add_gradients(at, joint, d_modified, key, j, sums, query_sums);
                      if constexpr (!mod::kDerivativeIsOne)
                          d_scores[i] = d_modified == 0 ? 0 : d_modified * joint.d_score;
                  });
        }
    }

    // All three at once, from products to fragments.
    __device__ void compute_p_and_ds(const Scores& scores, const Scores& dp, Fragments& p,
                                     Fragments& d_scores, int tile_query, const RowFacts& facts,
                                     GradientSums& sums, QuerySums& query_sums) const {
        unsigned visible[2] = {~0u, ~0u};
        const bool hides = hides_any(tile_query);
        if (hides) find(visible, tile_query);
        if (mod::kHidesByMaskAlone && !hides)
            change_all<true>(scores, dp, p, d_scores, tile_query, facts, visible, sums, query_sums);
        else
            change_all<false>(scores, dp, p, d_scores, tile_query, facts, visible, sums,
                              query_sums);
        query_sums.exchange_early();
    }

    // Sums over the queries of this head.
    __device__ void flush(GradientSums& sums) const {
        if constexpr (mod::kAddsGradients)
            visit_gradients([&](auto gradient) {
                decltype(gradient)::Sum::flush(gradient.kValue, sums, *this);
            });
    }
    // The thread's keys, for any query: what reads by heads and keys name.
    __device__ bool has_key(int key) const { return first_key_ + 8 * key < length_.keys(); }
    __device__ mod::At at_key(const mod::Row& row, int key) const {
        return element(row, key, 0, 0, 0);
    }

  private:
    // Products become modified scores, or where a derivative is folded in, its products with P and
    // fragments of P. kSubtracts: the references of rows, which are zero in most tiles.
    template <bool kSubtracts>
    __device__ void modify_all(Scores& scores, Fragments& p, int& tile_query,
                               const RowFacts& facts) const {
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            if (ends_before(pair, tile_query)) break;
            tile_query = again_for(pair, tile_query);
            float lse_log2[2], reference[2] = {0, 0}, even[2];
            if constexpr (kFolds) {
                const int first = first_query_ + (kSubtracts ? zero_after(scores, pair) : 0);
                facts.load(kLseLog2Fact, first, pair, lse_log2);
                if constexpr (kSubtracts) facts.load(kReferenceFact, first, pair, reference);
            }
            Index2dReads::Values staged;
            index_2d_reads_.load(staged, pair);
            const BiasPair biases = biases_.load(pair);
#pragma unroll
            for (int side = 0; side < 2; ++side)
                visit(tile_query, 2 * pair + side, staged[side], biases.of[side],
                      [&](int key, int i, const mod::At& at) {
                          const mod::Joint joint = modify(at, scores[i]);
                          if constexpr (!kFolds) {
                              scores[i] = joint.score;
                              return;
                          }
                          const float p_value =
                              p_of<kSubtracts>(joint.score, reference[side], lse_log2[side]);
                          // A derivative without bounds must not meet a weight of zero.
                          scores[i] = p_value == 0 ? 0 : p_value * joint.d_score;
                          gather(p, even, p_value, key, i);
                      });
        }
    }

    // Zero, once the pair before this one has become P. What only few tiles do in a branch would
    // else be begun for all pairs at once, which spills.
    __device__ int zero_after(const Scores& scores, int pair) const {
        if (!kSaves.subtracts_apart || pair == 0) return 0;
        const int never_negative = attention_.q_len;
        return __float_as_int(scores[accumulator(1, 2 * pair - 1)]) & (never_negative >> 31);
    }

    // kSeesAll: nothing is hidden, nor does a weight of zero meet what is infinite or NaN.
    template <bool kSeesAll>
    __device__ void change_all(const Scores& scores, const Scores& dp, Fragments& p,
                               Fragments& d_scores, int tile_query, const RowFacts& facts,
                               const unsigned (&visible)[2], GradientSums& sums,
                               QuerySums& query_sums) const {
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            tile_query = again_for(pair, tile_query);
            float lse_log2[2], reference[2], delta[2], even[2], d_even[2];
            facts.load(kLseLog2Fact, first_query_, pair, lse_log2);
            facts.load(kReferenceFact, first_query_, pair, reference);
            facts.load(kDeltaFact, first_query_, pair, delta);
            Index2dReads::Values staged;
            index_2d_reads_.load(staged, pair);
            const BiasPair biases = biases_.load(pair);
#pragma unroll
            for (int side = 0; side < 2; ++side)
                visit(tile_query, 2 * pair + side, staged[side], biases.of[side],
                      [&](int key, int i, const mod::At& at) {
                          const mod::Joint joint = modify(at, scores[i]);
                          float p_value = p_of(joint.score, reference[side], lse_log2[side]);
                          if (!kSeesAll && !(visible[key] >> (2 * pair + side) & 1)) p_value = 0;
                          float d_modified = p_value * (dp[i] - delta[side]);
                          if (!kSeesAll && p_value == 0) d_modified = 0;
                          add_gradients<kSeesAll>(at, joint, d_modified, key, 2 * pair + side, sums,
                                                  query_sums);
                          gather(p, even, p_value, key, i);
                          gather(d_scores, d_even,
                                 !kSeesAll && d_modified == 0 ? 0 : d_modified * joint.d_score, key,
                                 i);
                      });
        }
    }

    // Positions start anew with the products, so that nothing of them is computed before; where
    // elements read memory, with every few queries, so that no more reads are under way at once;
    // and with every part of the queries.
    static __device__ bool starts_anew(int pair) {
        return (mod::kReadsElements && pair % 2 == 0) ||
               (kSaves.modifies_in_parts && pair > 0 && pair % kPairsAtOnce == 0);
    }
    static __device__ int again_for(int pair, int tile_query) {
        return pair == 0 || starts_anew(pair) ? computed_again(tile_query) : tile_query;
    }
    // Whether queries end before those of a pair. The branch keeps reads and parts apart, or
    // registers spill.
    __device__ bool ends_before(int pair, int tile_query) const {
        return starts_anew(pair) && tile_query + 8 * pair >= length_.queries();
    }

    // Accumulator i of a key: the first of two waits for the second, then both are packed.
    static __device__ void gather(Fragments& to, float (&even)[2], float x, int key, int i) {
        if (i % 2 == 0)
            even[key] = x;
        else
            to[i / 8][i / 2 % 4] = pack(mod::Element{}, even[key], x);
    }

    // As the program sees it. Memory is read within the tensors only.
    __device__ int key_index(int key, bool reads) const {
        const int position = first_key_ + 8 * key;
        return reads ? length_.kv_idx(position) : position + static_cast<int>(length_.kv_offset());
    }
    // `first`: of the tile's queries, this thread's first in the tensor; j: which of those it is.
    // staged: what reads give by rows and columns of a 2-D key index. bias: of the
    // copied dense bias.
    __device__ mod::At element(const mod::Row& row, int key, int q, int first, int j,
                               const float* staged = nullptr, float bias = 0) const {
        const int kv = key_index(key, mod::kReadsElements);
        const int first_q = mod::kReadsElements ? q : first + static_cast<int>(length_.q_offset());
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
                mod::kReadsElements ? kv : key_index(0, false),
                expanded_ + (first - first_key_),
                expanded_count_,
                query_of(j) - 8 * key,
                staged,
                bias};
    }

    // Of a query of the tile, which the program sees as q.
    __device__ mod::Row row_of(int query, int q) const {
        if constexpr (!mod::kHasScoreMod) return {};
        if constexpr (kStagesRows) return rows_[query];
        return mod::at_row(arguments_, place_.launch, place_.head, place_.b, place_.h, place_.h_kv,
                           q);
    }

    using Staged = float[2][Index2dReads::kReads > 0 ? Index2dReads::kReads : 1]; // of both keys

    // Both elements of the j-th query: visit(key, accumulator, element).
    template <typename Visit>
    __device__ void visit(int tile_query, int j, const Staged& staged, const float (&biases)[2],
                          Visit visit_element) const {
        const int offset = static_cast<int>(length_.q_offset());
        const int first = tile_query + first_query_;
        const int inside = min(first + query_of(j), length_.queries() - 1) + offset;
        // Else addresses of staged rows would be kept from tile to tile.
        const int own = kSaves.modifies_in_parts && kStagesRows && !kIsLong
                            ? computed_again(first_query_)
                            : first_query_;
        const mod::Row row = row_of(own + query_of(j), inside);
        const int q = mod::kReadsElements ? inside : first + query_of(j) + offset;
#pragma unroll
        for (int key = 0; key < 2; ++key)
            visit_element(key, accumulator(key, j),
                          element(row, key, q, first, j, staged[key], biases[key]));
    }

    __device__ mod::Joint modify(const mod::At& at, float product) const {
        if constexpr (mod::kHasScoreMod) return mod::joint(at, product * attention_.scale);
        return {product, 1, {}};
    }
    template <bool kSubtracts = true>
    static __device__ float p_of(float score, float reference, float lse_log2) {
        const float relative = kSubtracts ? score - reference : score;
        return exp2_fast(fmaf(relative, kLog2E, -lse_log2));
    }

    // Modified scores become P. Where a tile's origins say that rows of it have scores too
    // large for one float, these become relative to their references first.
    __device__ void exponentiate(Scores& scores, const RowFacts& facts) const {
        const float factor = mod::kHasScoreMod ? kLog2E : attention_.scale * kLog2E;
        float lse_log2[2];
        facts.load(kLseLog2Fact, first_query_, 0, lse_log2);
        if (has_large_rows(lse_log2[0])) subtract_references(scores, facts);
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            facts.load(kLseLog2Fact, first_query_, pair, lse_log2);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int key = 0; key < 2; ++key) {
                    float& score = scores[accumulator(key, 2 * pair + side)];
                    score = exp2_fast(fmaf(score, factor, -lse_log2[side]));
                }
        }
    }
    __device__ void subtract_references(Scores& scores, const RowFacts& facts) const {
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            float reference[2];
            facts.load(kReferenceFact, first_query_, pair, reference);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int key = 0; key < 2; ++key)
                    scores[accumulator(key, 2 * pair + side)] -= reference[side];
        }
    }

    __device__ bool hides_any(int tile_query) const {
        return !queries_.are_all(tile_query, mask_shows_tile_);
    }
    __device__ void find(unsigned (&visible)[2], int tile_query) const {
        static_assert(kQueries <= 32, "one bit each");
        queries_.find(visible, tile_query, columns_, rows_);
    }
    __device__ void look(Sight& sight, int tile_query) const {
        find(sight.visible, tile_query);
        sight.pack();
    }
    template <bool kIsFinite = false>
    __device__ void add_gradients(const mod::At& at, const mod::Joint& joint, float d_modified,
                                  int key, int j, GradientSums& sums, QuerySums& query_sums) const {
        add_element<kIsFinite>(at, joint, d_modified, key, j, {sums, query_sums, biases_});
    }

    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    TileLength length_;
    int first_key_;        // of this thread, in the tensor
    int first_query_;      // of this thread, in a tile of queries
    bool mask_shows_tile_; // of the tile, to every key
    KeyColumns columns_;
    VisibleQueries queries_;
    Index2dReads index_2d_reads_;
    const mod::Row* rows_;
    TileBiases biases_;
    const float* expanded_;    // entry of distance 0
    long long expanded_count_; // from one read to the next
};

} // namespace sm90

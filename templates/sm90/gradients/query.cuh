// Gradients that are sums over keys, one for each query of a tile.
//
// A warp sums over its own keys. Where there is memory for it, warps leave their sums there, and
// one of the warpgroups, alternately, adds one number for each query to the gradient: an
// eighth of the additions, each of which is two of integers where sums are exact.
//
// One barrier serves all steps. No warp arrives for a step before all have arrived for the one
// before: the warpgroup that adds has waited for the others at the barrier of dS by then, and the
// other one added at the step before, when it waited for all. A slot is written again four steps
// later: one step after it was read, the other warpgroup waits for those that have read it; two
// steps after, these wait for each other. With the barrier of dS two slots would be enough, but
// racecheck does not see the order that it gives.
#pragma once

#include "common/lane_sums.cuh"
#include "common/place.cuh"
#include "sm90/backward_elements.cuh"
#include "sm90/backward_lengths.cuh"
#include "sm90/backward_registers.cuh"
#include "sm90/gradients/sum.cuh"

namespace sm90 {

// Sums over the keys of the warp and calls visit(query, sum) for each query in one of its threads.
// Which these are is computed again, not kept: beside all MMAs of a step, that would spill.
template <int kQueries, typename Visit>
__device__ inline void visit_warp_sums(float (&sums)[kQueries], Visit visit_sum) {
    const int lane = lane_again();
    if constexpr (!kExchangesEarly) exchange<kQueries / 2, 16>(sums, lane);
    exchange<kQueries / 4, 8>(sums, lane);
    exchange<kQueries / 8, 4>(sums, lane);
    // Finds the queries whose sums the lane ends up with.
    const auto bit = [lane](int which) { return (lane & which) != 0; };
    const int first = (bit(16) * 4 + bit(8) * 2 + bit(4)) * (kQueries / 8);
    const int odd = kQueries < 16 ? first % 2 : 0;
#pragma unroll
    for (int i = 0; i < kQueries / 8; ++i)
        visit_sum(lane % 4 * 2 + first / 2 * 8 + odd + query_of(i), sums[i]);
}

// A thread's sums over its two keys, for each of its queries.
struct QuerySums {
    float of_query[kGradientSlots][kScoreQueries / 4];

    // Does half of the exchange between lanes, where it does not wait for the products that follow.
    __device__ void exchange_early() {
        if constexpr (kExchangesEarly)
#pragma unroll
            for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                if (mod::ReadGradients::sum_of(gradient) == mod::Sum::query)
                    exchange<kScoreQueries / 8, 16>(of_query[gradient],
                                                    static_cast<int>(threadIdx.x));
    }
};

template <> struct SumOf<mod::Sum::query> : NoSum {
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At&, int, int j, Sums& sums) {
        sums.queries.of_query[gradient][j] += d_read;
    }
};

// The warps' sums of one gradient and step, in shared memory.
class GatheredSums {
  public:
    __device__ GatheredSums(int gradient, unsigned step) {
        int before = 0;
        for (int i = 0; i < gradient; ++i)
            before += mod::ReadGradients::sum_of(i) == mod::Sum::query;
        const int slot = static_cast<int>(step % kQuerySumSlots);
        base_ = shared_address(shared_memory) + kLayout.query_sums +
                (slot * mod::ReadGradients::kQuerySums + before) * kQuerySumsBytes;
    }
    __device__ void store(int query, float sum) const {
        store_shared_word(place(thread_again() / 32 - 4, query), __float_as_uint(sum));
    }
    __device__ float load(int query) const {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < 4 * kConsumers; ++warp)
            sum += __uint_as_float(load_shared_word(place(warp, query)));
        return sum;
    }

  private:
    __device__ unsigned place(int warp, int query) const {
        return base_ + 4 * (warp * mod::kQueryTile + query);
    }

    unsigned base_;
};

// Calls visit(at) with an element of the query at a position, for addresses, if there is a query.
template <typename Visit>
__device__ inline void visit_query(const mod::Arguments& arguments, const HeadPlace& place,
                                   TileLength length, int position, Visit visit_at) {
    if (position >= length.queries()) return;
    const int q = position + static_cast<int>(length.q_offset());
    const mod::Row row =
        mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
    visit_at(mod::At{arguments, place.launch, place.head, row, mod::Column{}, place.b, place.h,
                     place.h_kv, q, 0});
}

// Sums of the gradients of one query head.
struct QuerySummation {
    TileLength length;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    const Shared& shared;

    static constexpr bool kGathers = mod::ReadGradients::kQuerySums > 0;

    // Hands a warp's sums to the warpgroup that adds them, or where they are not gathered, adds
    // them to the gradient. tile_query: the tile's first query.
    __device__ void hand_over(QuerySums& sums, unsigned step, int tile_query) const {
        visit_gradients([&](int gradient) {
            visit_warp_sums(sums.of_query[gradient], [&](int query, float sum) {
                if constexpr (kGathers)
                    GatheredSums(gradient, step).store(query, sum);
                else
                    add_sum(gradient, tile_query + query, sum);
            });
        });
        if constexpr (kGathers) shared.sums_full().arrive();
    }
    // Called by a warp none of whose keys are seen by the tile: its sums are zero.
    __device__ void hand_over_zeros(unsigned step) const {
        if constexpr (kGathers) {
            visit_gradients([&](int gradient) {
                for (int query = lane_again(); query < mod::kQueryTile; query += 32)
                    GatheredSums(gradient, step).store(query, 0);
            });
            shared.sums_full().arrive();
        }
    }
    // Called by one warpgroup: adds the sums over all the block's keys to the gradient.
    __device__ void add_gathered(unsigned step, int tile_query) const {
        if constexpr (kGathers) {
            shared.sums_full().wait(step % 2);
            visit_gradients([&](int gradient) {
                const int query = thread_again() % 128;
                if (query < mod::kQueryTile)
                    add_sum(gradient, tile_query + query, GatheredSums(gradient, step).load(query));
            });
        }
    }

  private:
    template <typename Visit> static __device__ void visit_gradients(Visit visit_gradient) {
#pragma unroll
        for (int gradient = 0; gradient < mod::kGradients; ++gradient)
            if (mod::ReadGradients::sum_of(gradient) == mod::Sum::query) visit_gradient(gradient);
    }
    // Adds a query's sum to the gradient. Its row is computed again: where warpgroups alternate,
    // what was staged may be another tile's.
    __device__ void add_sum(int gradient, int position, float sum) const {
        visit_query(arguments, place, length, position,
                    [&](const mod::At& at) { add(at, gradient, sum); });
    }
};

} // namespace sm90
